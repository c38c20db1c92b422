package worker

import (
	"context"
	"fmt"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/fleet"
	"tallyroll/tests/stack"
)

// Without the right to advisories new streams are found by listing, and the worker says what is missing.
func TestNoRightToAdvisories(t *testing.T) {
	t.Parallel()
	r := newRigOn(t, stack.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "all", Password: "all"},
			{Username: "deaf", Password: "deaf", Permissions: &server.Permissions{Subscribe: &server.SubjectPermission{Deny: []string{"$JS.EVENT.>"}}}},
		}
		o.NoAuthUser = "all"
	}))
	r.createStream(0)
	r.start("NATS_USER=deaf", "NATS_PASSWORD=deaf")
	r.logs.await(t, "may not subscribe to $JS.EVENT.ADVISORY.STREAM.CREATED.*")
	r.publish(3)
	r.settled(3)
	require.NoError(t, errOf(r.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "HITS_2", Subjects: []string{"more.>"}})))
	require.NoError(t, errOf(r.js.Publish(t.Context(), "more.c", nil)))
	stack.Eventually(t, "the hit of the new stream", func() (bool, string) {
		got, err := r.answer()
		return err == nil && got.Answers[0].Total == 4, fmt.Sprintf("%+v %v", got, err)
	})
}

// upToDate is true when every stream made before it is listed, and never while one could not be.
func TestUpToDate(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	settings := parse(t)
	ctx := context.Background()
	w := &census{
		js: r.js, store: r.store, log: zerolog.Nop(), reads: func() fleet.Globs { return settings.Streams },
		fleet: fleet.New(fleet.Config{JS: r.js, ID: r.store.ID, Streams: settings.Streams}),
	}
	listed := func(name string) bool {
		t.Helper()
		streams, err := r.store.Streams(t.Context())
		require.NoError(t, err)
		l, ok := streams[name]
		return ok && l.Created > 0 && l.Ended == 0
	}
	create := func(name string) {
		t.Helper()
		require.NoError(t, errOf(r.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name}})))
	}
	for i := range 20 {
		name := fmt.Sprintf("HITS_%d", i)
		create(name)
		if !w.upToDate(ctx) || !listed(name) {
			t.Errorf("%s: listed %v", name, listed(name))
		}
	}
	r.redis.Stop()
	create("HITS_LATE")
	if w.upToDate(ctx) {
		t.Error("up to date with a stream that could not be listed")
	}
	r.redis.Start()
	stack.Eventually(t, "to be up to date again", func() (bool, string) { return w.upToDate(ctx), "" })
	if !listed("HITS_LATE") {
		t.Error("up to date, and it is not listed")
	}
	r.nats.Stop()
	if w.upToDate(ctx) {
		t.Error("up to date without NATS")
	}
	r.nats.Start()
	stack.Eventually(t, "to be up to date again", func() (bool, string) { return w.upToDate(ctx), "" })
	w.running.Wait()
}
