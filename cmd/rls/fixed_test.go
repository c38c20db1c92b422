package main

import (
	"math"
	"testing"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	units "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// What the file of Envoy's own service can say: an asterisk at a value's end, 0 requests, and unlimited. The
// last two need no Redis.
func TestValuesThatBeginAlikeAndLimitsWithoutNumbers(t *testing.T) {
	t.Parallel()
	r := start(t, stack.Redis(t), `
limits:
- {name: bots, window: 1h, max: 1, envoy: {domain: edge, descriptor: [{key: agent, value: "bot-*"}]}}
- {name: good-bots, window: 1h, max: 2, envoy: {domain: edge, descriptor: [{key: agent, value: "bot-good*"}]}}
- {name: one, window: 1h, max: 3, envoy: {domain: edge, descriptor: [{key: agent, value: "bot-good-1"}]}}
- {name: agents, window: 1h, max: 4, envoy: {domain: edge, descriptor: [{key: agent}]}}
`)
	for value, most := range map[string]int{"bot-a": 1, "bot-b": 1, "bot-*": 1, "bot-": 1, "bot-good": 2, "bot-good-1": 3, "bot": 4, "robot-a": 4} {
		for range most {
			require.Equal(t, "OK: OK", codesOf(r.ask(descriptor("agent="+value))), value)
		}
		require.Equal(t, "OVER_LIMIT: OVER_LIMIT", codesOf(r.ask(descriptor("agent="+value))), value)
	}

	away := stack.Redis(t)
	r = start(t, away, `
limits:
- {name: never, window: 1h, max: 0, fail: closed, envoy: {domain: edge, partly: true, descriptor: [{key: never}]}}
- {name: free, window: 1h, unlimited: true, fail: closed, envoy: {domain: edge, reserve: {hits: 9}, descriptor: [{key: free}, {key: id, as: id}]}}
- {name: tried, window: 1h, max: 0, mode: shadow, fail: closed, envoy: {domain: edge, descriptor: [{key: tried}]}}
`)
	away.Kill()
	never, free, tried := descriptor("never=a"), descriptor("free=a", "id=1"), descriptor("tried=a")
	out := r.ask(free)
	require.Equal(t, "OK: OK", codesOf(out))
	require.Nil(t, out.Statuses[0].CurrentLimit)
	require.EqualValues(t, math.MaxUint32, out.Statuses[0].LimitRemaining)
	require.Empty(t, out.ResponseHeadersToAdd)
	free = hits(free, 0)
	require.Equal(t, "OK: OK", codesOf(r.ask(free)), "a reservation")
	free = hits(free, 5000)
	require.Equal(t, "OK: OK", codesOf(r.ask(free)), "and its settlement")
	out = r.ask(never)
	require.Equal(t, "OVER_LIMIT: OVER_LIMIT", codesOf(out))
	require.Zero(t, out.Statuses[0].CurrentLimit.RequestsPerUnit)
	require.Equal(t, "OVER_LIMIT: OK OVER_LIMIT", codesOf(r.ask(free, never)))
	require.Equal(t, "OK: OK OK", codesOf(r.ask(free, tried)))
	free.Limit = &ratelimit.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 0, Unit: units.RateLimitUnit_HOUR}
	require.Equal(t, "OVER_LIMIT: OVER_LIMIT", codesOf(r.ask(free)), "an override of 0")
}
