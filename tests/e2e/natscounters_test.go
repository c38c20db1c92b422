package e2e_test

import (
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// NATS's own counters get rolling windows: what the server adds up is what is counted, also of counters that
// a stream sources from two others. What NATS takes back cannot be counted, and is a reject.
func TestIncrementsOfNATSCountersAreCounted(t *testing.T) {
	t.Parallel()
	s := startServers(t)
	if version := s.nats.Conn().ConnectedServerVersion(); version < "2.12" {
		t.Skipf("NATS has counters from 2.12 on, and this one is %s", version)
	}
	create := func(name, subjects string, sources ...*jetstream.StreamSource) {
		t.Helper()
		config := jetstream.StreamConfig{Name: name, Sources: sources, AllowMsgCounter: true, AllowDirect: true}
		if subjects != "" {
			config.Subjects = []string{subjects}
		}
		_, err := s.js.CreateStream(t.Context(), config)
		require.NoError(t, err)
	}
	increase := func(subject, by string) {
		t.Helper()
		_, err := s.js.PublishMsg(t.Context(), &nats.Msg{Subject: subject, Header: nats.Header{"Nats-Incr": {by}}})
		require.NoError(t, err)
	}
	serversTotal := func(stream, subject string) string {
		t.Helper()
		last, err := s.js.Stream(t.Context(), stream)
		require.NoError(t, err)
		message, err := last.GetLastMsgForSubject(t.Context(), subject)
		require.NoError(t, err)
		var total struct{ Val string }
		require.NoError(t, json.Unmarshal(message.Data, &total))
		return total.Val
	}
	create("COUNT_EU", "eu.>")
	create("COUNT_US", "us.>")
	create("COUNT_ALL", "count.>",
		&jetstream.StreamSource{Name: "COUNT_EU", SubjectTransforms: []jetstream.SubjectTransformConfig{{Source: "eu.>", Destination: "count.>"}}},
		&jetstream.StreamSource{Name: "COUNT_US", SubjectTransforms: []jetstream.SubjectTransformConfig{{Source: "us.>", Destination: "count.>"}}})
	s.ingest = stack.Ingest(t, s.nats, s.redis, "INGEST_STREAMS=COUNT_ALL")
	s.query = stack.Query(t, s.redis)

	want := new(big.Int)
	for i := range 50 {
		by := []string{"1", "+5", "0", "1099511627776"}[i%4]
		increase([]string{"eu.home", "us.home", "count.home"}[i%3], by)
		n, _ := new(big.Int).SetString(by, 10)
		want.Add(want, n)
	}
	s.awaitTotal("home", want.Int64())
	require.Equal(t, want.String(), serversTotal("COUNT_ALL", "count.home"))

	increase("count.home", "-2")
	increase("count.home", "1099511627777")
	increase("count.home", "1")
	s.awaitTotal("home", want.Int64()+1)
	s.awaitRejects(2)
	code, out := runToEnd(t, "audit", nil, "NATS_URL="+s.nats.URL(), "REDIS_URL="+s.redis.URL())
	require.Zero(t, code, out)
	require.Contains(t, out, "1 counters, 0 differences")

	// No hit can stand for a refused increment. Its reject has it, and stays.
	rejected, err := s.js.Stream(t.Context(), "HITS_REJECTED")
	require.NoError(t, err)
	first, err := rejected.GetMsg(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, "-2", first.Header.Get("Tallyroll-Increment"))
	code, out = runToEnd(t, "redrive", []string{"--reason", "bad_count", "--subject", "eu.again"}, "NATS_URL="+s.nats.URL())
	require.Zero(t, code, out)
	require.Contains(t, out, "no hit can stand for")
	s.awaitRejects(2)

	// What no repetition can store ends a program.
	code, out = runToEndWith(t, "publish", strings.NewReader(`{"key":"home"}`), []string{"--format", "ndjson", "--subject", "eu"}, "NATS_URL="+s.nats.URL())
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "message counter increment is missing (10169)")
}

// Rules name the increments of NATS's own counters, which are the default of n. --try shows the same.
func TestRulesNameIncrements(t *testing.T) {
	t.Parallel()
	s := startServers(t)
	if version := s.nats.Conn().ConnectedServerVersion(); version < "2.12" {
		t.Skipf("NATS has counters from 2.12 on, and this one is %s", version)
	}
	_, err := s.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "COUNT", Subjects: []string{"count.>"}, AllowMsgCounter: true, AllowDirect: true})
	require.NoError(t, err)
	rules := file(t, "rules.yaml", `
- stream: COUNT
  subject: count.*
  format: none
  count:
    - key: page/{subject.1}
    - key: calls
      n: 1
- stream: COUNT
  subject: count.*.total
  count:
    - key: total/{val}
`)
	s.ingest = stack.Ingest(t, s.nats, s.redis, "INGEST_STREAMS=COUNT", "INGEST_RULES="+rules)
	s.query = stack.Query(t, s.redis)
	increase := func(subject, by string) {
		t.Helper()
		_, err := s.js.PublishMsg(t.Context(), &nats.Msg{Subject: subject, Header: nats.Header{"Nats-Incr": {by}}})
		require.NoError(t, err)
	}
	for _, by := range []string{"5", "0", "2", "-1"} {
		increase("count.home", by)
	}
	increase("count.x.total", "3")
	increase("count.a.b.c", "4") // no rule names it
	s.awaitTotals(map[string]int64{"page/home": 7, "calls": 2, "total/3": 3, "a.b.c": 4})
	s.awaitRejects(1)

	var samples strings.Builder
	for _, m := range [][2]string{{"count.home", "5"}, {"count.home", "0"}, {"count.home", "2"}, {"count.home", "-1"}, {"count.x.total", "3"}} {
		fmt.Fprintf(&samples, "# subject: %s\n# Nats-Incr: %s\n{\"val\":\"3\"}\n", m[0], m[1])
	}
	code, out := runToEndWith(t, "ingest", strings.NewReader(samples.String()), []string{"--try", rules})
	require.Equal(t, 1, code, out)
	for _, line := range []string{"counted\tpage/home\t5\t", "counted\tpage/home\t2\t", "counted\ttotal/3\t3\t", "rejected\tbad_count", "5 messages: 5 hits on 3 counters, 1 rejected (bad_count 1)"} {
		require.Contains(t, out, line)
	}
}
