package e2e_test

import (
	"encoding/json"
	"math/big"
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
}
