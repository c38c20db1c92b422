package e2e_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// ownNATS is a NATS server that somebody else has set up, as the programs reach it.
type ownNATS struct {
	env   []string            // settings of every program
	near  *nats.Conn          // a producer where the programs are
	owner jetstream.JetStream // where the streams are
}

// countsExactly runs ingest, query and publish, and compares: hits, with and without a body, before and after the
// loss of Redis, rejects, the answer of /v1/streams, and what publish tells.
func (o ownNATS) countsExactly(t *testing.T) {
	t.Helper()
	redis := stack.Redis(t)
	ingest := stack.Ingest(t, nil, redis, slices.Concat(o.env, []string{"INGEST_WORKER=one"})...)
	query := stack.Query(t, redis, o.env...)
	stream, err := o.owner.Stream(t.Context(), "HITS")
	require.NoError(t, err)
	const own, empty = 40, 60
	code, out := endsWith(t, "publish", strings.NewReader(strings.Repeat(`{"key":"own","n":2}`+"\n", own)+`{"key":"own","ts":1}`+"\n"),
		[]string{"--format", "ndjson", "--batch", "7"}, o.env...)
	if code != 0 || !strings.Contains(out, "published 41 hits") {
		t.Errorf("publish ends with %d and %q", code, out)
	}
	for i := range empty { // an empty body is a hit, and the next message comes all the same
		body := ""
		if i%3 == 0 {
			body = "{}"
		}
		if _, err := o.near.Request("hits.empty", []byte(body), 30*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := o.near.Request("hits.bad", []byte("no hit"), 30*time.Second); err != nil {
		t.Fatal(err)
	}
	check := func(when string) {
		t.Helper()
		stack.EventuallyTotal(t, query.URL(), "empty", "1h", empty)
		stack.EventuallyTotal(t, query.URL(), "own", "1h", 2*own)
		info, err := stream.Info(t.Context())
		require.NoError(t, err)
		got := eventuallyAnswers(t, query.URL()+"/v1/streams", "all messages to be applied, "+when, func(a streamsAnswer) bool {
			return len(a.Streams) == 1 && a.Streams[0].Applied == info.State.LastSeq && a.Streams[0].Worker == "one" && a.Streams[0].Rejects == 2
		})
		if s := got.Streams[0]; s.Stream != "HITS" || !s.Exists || s.Last != info.State.LastSeq {
			t.Errorf("%s: %+v", when, s)
		}
		rejected, err := o.owner.Stream(t.Context(), "HITS_REJECTED")
		require.NoError(t, err)
		if n := rejected.CachedInfo().State.Msgs; n != 2 {
			t.Errorf("%s: %d rejects are stored, want 2", when, n)
		}
		list := eventuallyAnswers(t, query.URL()+"/v1/rejects", "the rejects", func(a rejectsAnswer) bool { return len(a.Rejects) == 2 })
		if r := list.Rejects[0]; r.Reason != "bad_json" || r.Body != "no hit" {
			t.Errorf("%s: %+v", when, r)
		}
	}
	check("at first")
	if err := redis.Client().FlushAll(t.Context()).Err(); err != nil { // all is read again, and rejects are compared with those stored
		t.Fatal(err)
	}
	check("after the loss of Redis")
	if code := ingest.Stop(); code != 0 {
		t.Errorf("ingest ends with %d", code)
	}
	for _, p := range []*stack.Service{ingest, query} {
		if strings.Contains(p.Logs(), secret) {
			t.Errorf("a log has the secret:\n%s", p.Logs())
		}
	}
}

// jetStreamOf is the JetStream of a connection.
func jetStreamOf(t *testing.T, conn *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	return js
}
