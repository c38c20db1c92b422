package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// What Envoy asks about counts as takes do: a reservation when it is settled, and of hits that have happened
// what did not fit as refused.
func TestDecisionsForEnvoyCount(t *testing.T) {
	t.Parallel()
	nats, redis := stack.NATS(t), stack.Redis(t)
	stack.Ingest(t, nats, redis)
	query := stack.Query(t, redis)
	const count = `count: {allowed: "usage.{limit}.{key}", refused: "refused.{limit}.{key}", returned: "back.{limit}.{key}", would_refuse: "try.{limit}.{key}"}`
	r := start(t, redis, `limits:
- {name: pages, window: 1h, max: 2, `+count+`, envoy: {domain: edge, descriptor: [{key: user}]}}
- {name: bytes, window: 1h, max: 100, `+count+`, envoy: {domain: edge, partly: true, descriptor: [{key: sent}]}}
- {name: tried, window: 1h, max: 100, mode: shadow, `+count+`, envoy: {domain: edge, partly: true, descriptor: [{key: tried}]}}
- {name: never, window: 1h, max: 0, `+count+`, envoy: {domain: edge, descriptor: [{key: closed}]}}
- {name: tokens, window: 1h, max: 1000, `+count+`, envoy: {domain: edge, reserve: {hits: 400}, descriptor: [{key: model}, {key: request, as: id}]}}
`, "NATS_URL="+nats.URL())
	for _, want := range []string{"OK: OK", "OK: OK", "OVER_LIMIT: OVER_LIMIT", "OVER_LIMIT: OVER_LIMIT"} {
		require.Equal(t, want, codesOf(r.ask(descriptor("user=anna"))))
	}
	require.Equal(t, "OK: OK", codesOf(r.ask(hits(descriptor("user=bert"), 2))))
	require.Equal(t, "OK: OK", codesOf(r.ask(hits(descriptor("user=bert"), -1))))
	require.Equal(t, "OVER_LIMIT: OVER_LIMIT", codesOf(r.ask(hits(descriptor("sent=anna"), 3100))))
	require.Equal(t, "OK: OK", codesOf(r.ask(hits(descriptor("tried=anna"), 150))))
	require.Equal(t, "OK: OK", codesOf(r.ask(hits(descriptor("model=anna", "request=1"), 0))))
	require.Equal(t, "OK: OK", codesOf(r.ask(hits(descriptor("model=anna", "request=1"), 73))))
	require.Equal(t, "OK: OK", codesOf(r.ask(hits(descriptor("model=anna", "request=2"), 0)))) // never settled
	require.Equal(t, "OVER_LIMIT: OVER_LIMIT", codesOf(r.ask(hits(descriptor("closed=anna"), 7))))
	require.Zero(t, r.Stop())
	for counter, n := range map[string]int64{
		"usage.pages.anna": 2, "refused.pages.anna": 2, "usage.pages.bert": 2, "back.pages.bert": 1,
		"usage.bytes.anna": 100, "refused.bytes.anna": 3000, "usage.tried.anna": 100, "try.tried.anna": 50,
		"usage.tokens.anna": 73, "refused.tried.anna": 0, "refused.never.anna": 7, "try.bytes.anna": 0,
	} {
		stack.EventuallyTotal(t, query.URL(), counter, "1h", n)
	}
}
