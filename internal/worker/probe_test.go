package worker

import (
	"errors"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/outbox"
	"tallyroll/tests/stack"
)

// The probe finds the stream that takes a subject, and stores nothing.
func TestTaker(t *testing.T) {
	t.Parallel()
	broker := stack.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "all", Password: "all"},
			{Username: "mute", Password: "mute", Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"hits.>"}}}},
		}
		o.NoAuthUser = "all"
	})
	js := broker.JetStream()
	for _, config := range []jetstream.StreamConfig{
		{Name: "HITS", Subjects: []string{"hits.>"}},
		{Name: "ONE", Subjects: []string{"one.*.x"}, MaxMsgs: 1, Discard: jetstream.DiscardNew, DenyDelete: true},
	} {
		require.NoError(t, errOf(js.CreateStream(t.Context(), config)))
	}
	deaf := broker.Conn()
	require.NoError(t, errOf(deaf.Subscribe("deaf.>", func(*nats.Msg) {})))
	require.NoError(t, errOf(deaf.Subscribe("chatty.>", func(m *nats.Msg) { _ = m.Respond([]byte("hello")) })))
	require.NoError(t, deaf.Flush())
	for _, test := range []struct {
		subject, stream string
		err             error
		options         []nats.Option
	}{
		{"hits.>", "HITS", nil, nil},
		{"hits.*.b", "HITS", nil, nil},
		{"one.*.x", "ONE", nil, nil},
		{"one.>", "", outbox.ErrNoStream, nil}, // the tokens of a hit are not known
		{"hitp.0.>", "", outbox.ErrNoStream, nil},
		{"deaf.>", "", outbox.ErrNoAnswer, nil},
		{"chatty.>", "", outbox.ErrNoAnswer, nil},
		{"hits.>", "", outbox.ErrMayNot, []nats.Option{nats.UserInfo("mute", "mute")}},
	} {
		stream, err := outbox.Taker(t.Context(), broker.Conn(test.options...), test.subject)
		if stream != test.stream || !errors.Is(err, test.err) || err != nil && test.err == nil {
			t.Errorf("%s: %q, %v, want %q, %v", test.subject, stream, err, test.stream, test.err)
		}
	}
	for _, name := range []string{"HITS", "ONE"} {
		handle, err := js.Stream(t.Context(), name)
		if err != nil || handle.CachedInfo().State.LastSeq != 0 {
			t.Errorf("%s: %+v, %v: something was stored", name, handle.CachedInfo().State, err)
		}
	}
}

func TestPartitionsWithoutAMappingAreSaid(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start("INGEST_PARTITIONS=2")
	r.logs.await(t, "HITS PUBLISHED TO hits.> ARE LOST", "deploy/nats-partitions.conf", `hitp.{{partition(2)}}.>`)
	require.NoError(t, r.js.Conn().Publish("hits.c", nil))
	r.settled(0)
}

func TestSettingsWithoutEffectAreSaid(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.createStream(0)
	w := r.start("INGEST_PARTITIONS=4")
	r.logs.await(t, "INGEST_PARTITIONS=4 has no effect")
	w.stop()
	r.start("INGEST_SUBJECT=clicks.>", "INGEST_REPLICAS=1", "INGEST_MAX_AGE=3h")
	r.logs.await(t, "INGEST_SUBJECT=clicks.> has no effect", "on hits.>")
	r.logs.await(t, "INGEST_MAX_AGE=3h0m0s has no effect")
	r.logs.await(t, "hits published to clicks.> are lost")
	require.Zero(t, r.logs.count("INGEST_REPLICAS="), "a setting that was left alone is said to have no effect")
}
