package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/consume/fleet"
	"tallyroll/internal/platform/outbox"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/rejects"
	"tallyroll/tests/stack"
)

// listMatching returns the streams that the worker would read.
func listMatching(t *testing.T, w *ownStreams) ([]string, error) {
	t.Helper()
	all, err := listStreams(t.Context(), w.js)
	return slices.DeleteFunc(all, func(name string) bool { return !w.settings.Streams.Match(name) }), err
}

func TestMissingStreamsAreCreatedAsSet(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		env      []string
		subjects map[string]string
	}{
		{"one", nil, map[string]string{"HITS": "hits.>"}},
		{"subject", []string{"INGEST_SUBJECT=clicks.*"}, map[string]string{"HITS": "clicks.*"}},
		{"partitions", []string{"INGEST_PARTITIONS=3"}, map[string]string{"HITS_0": "hitp.0.>", "HITS_1": "hitp.1.>", "HITS_2": "hitp.2.>"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			js := stack.SharedNATS(t).JetStream()
			require.NoError(t, rejects.Create(t.Context(), js, 1, time.Hour))
			w := &ownStreams{settings: parseSettings(t, append(test.env, "INGEST_MAX_AGE=3h")...), js: js, log: zerolog.Nop()}
			if names, err := listMatching(t, w); err != nil || len(names) > 0 {
				t.Fatalf("streams before: %v %v", names, err)
			}
			for range 2 { // again where they are there already: another worker was faster
				names, err := w.create(t.Context(), w.missingSubjects(nil))
				if err != nil || len(names) != len(test.subjects) {
					t.Fatalf("created %v: %v", names, err)
				}
			}
			names, err := listMatching(t, w)
			if err != nil || len(names) != len(test.subjects) {
				t.Fatalf("streams after: %v %v", names, err)
			}
			for _, name := range names {
				handle, err := js.Stream(t.Context(), name)
				require.NoError(t, err)
				config := handle.CachedInfo().Config
				if !slices.Equal(config.Subjects, []string{test.subjects[name]}) || config.MaxAge != 3*time.Hour || config.Storage != jetstream.FileStorage {
					t.Errorf("%s: %+v", name, config)
				}
			}
		})
	}
	t.Run("not matching", func(t *testing.T) {
		w := &ownStreams{settings: parseSettings(t, "INGEST_STREAMS=CLICKS"), js: stack.SharedNATS(t).JetStream(), log: zerolog.Nop()}
		require.ErrorContains(t, errOf(w.create(t.Context(), w.missingSubjects(nil))), "CLICKS")
	})
}

// A worker that dies while it makes the streams leaves a part of them.
func TestStreamsThatADeadWorkerLeftOutAreCreated(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, there string // names, space-separated
		env         []string
		want        string // to be made
	}{
		{"none", "OTHER", []string{"INGEST_PARTITIONS=4"}, "HITS_0 HITS_1 HITS_2 HITS_3"},
		{"some", "HITS_0 HITS_3", []string{"INGEST_PARTITIONS=4"}, "HITS_1 HITS_2"},
		{"all", "HITS_0 HITS_1", []string{"INGEST_PARTITIONS=2"}, ""},
		{"more than are asked for", "HITS_0 HITS_1 HITS_2", []string{"INGEST_PARTITIONS=2"}, ""},
		{"a stream of another program", "HITS", []string{"INGEST_PARTITIONS=4"}, ""},
		{"some that this worker does not read", "HITS_0", []string{"INGEST_PARTITIONS=4", "INGEST_STREAMS=HITS_[01]"}, "HITS_1"},
		{"one stream only", "HITS_0", nil, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := &ownStreams{settings: parseSettings(t, test.env...)}
			require.ElementsMatch(t, strings.Fields(test.want), slices.Collect(maps.Keys(w.missingSubjects(strings.Fields(test.there)))))
		})
	}

	r := newRig(t)
	require.NoError(t, errOf(r.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "HITS_1", Subjects: []string{"hitp.1.>"}})))
	r.start("INGEST_PARTITIONS=3")
	for i := range 3 {
		stack.Eventually(t, "a stream for every partition", func() (bool, string) {
			_, err := r.js.Publish(t.Context(), fmt.Sprintf("hitp.%d.c", i), nil)
			return err == nil, fmt.Sprint(i, err)
		})
	}
	r.awaitTotal(3)
}

// A cluster that is coming up refuses for a while what it will do.
func TestRefusalOfAClusterThatComesUpIsWaitedFor(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	replicas := &jetstream.APIError{Code: 500, ErrorCode: 10074, Description: "replicas > 1 not supported in non-clustered mode"}
	for _, test := range []struct {
		name string
		errs []error // of each try
		want error
	}{
		{"nothing to wait for", []error{nil}, nil},
		{"leaders are elected, servers come", []error{
			context.DeadlineExceeded, nats.ErrNoResponders, &jetstream.APIError{Code: 503, ErrorCode: 10008},
			fmt.Errorf("create stream HITS: %w", &jetstream.APIError{Code: 400, ErrorCode: 10005}), nil,
		}, nil},
		{"refused", []error{context.DeadlineExceeded, refused}, refused},
		{"refused by the server", []error{replicas}, replicas},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tries := 0
				err := awaitLeader(t.Context(), zerolog.Nop(), func(context.Context) error {
					tries++
					return test.errs[tries-1]
				})
				if !errors.Is(err, test.want) || err != nil && test.want == nil || tries != len(test.errs) {
					t.Errorf("%v after %d tries, want %v after %d", err, tries, test.want, len(test.errs))
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) { // servers that never come are waited for, and not for ever
		began := time.Now()
		none := fmt.Errorf("create stream HITS: %w", &jetstream.APIError{Code: 400, ErrorCode: noPeers})
		err := awaitLeader(t.Context(), zerolog.Nop(), func(context.Context) error { return none })
		if took := time.Since(began); !errors.Is(err, none) || took < serversWithin || took > serversWithin+time.Second {
			t.Errorf("%v after %v", err, took)
		}
		settings := parseSettings(t, "INGEST_REPLICAS=3")
		var setting *setting.Error
		if err := settings.createError(err); !errors.As(err, &setting) || setting.Key != "INGEST_REPLICAS" || setting.Value != "3" {
			t.Errorf("%v names no setting", err)
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	err := awaitLeader(ctx, zerolog.Nop(), func(context.Context) error { cancel(); return nats.ErrTimeout })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v when the worker is stopped while it waits", err)
	}
}

func TestProbeFindsTheStreamThatTakesASubjectAndStoresNothing(t *testing.T) {
	t.Parallel()
	broker := startNATSWithUser(t, "mute", server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"hits.>"}}})
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
		{"one.>", "", outbox.ErrNoStream, nil}, // how many tokens a hit has is unknown
		{"hitp.0.>", "", outbox.ErrNoStream, nil},
		{"deaf.>", "", outbox.ErrNoAnswer, nil},
		{"chatty.>", "", outbox.ErrNoAnswer, nil},
		{"hits.>", "", outbox.ErrNotPermitted, []nats.Option{nats.UserInfo("mute", "mute")}},
	} {
		asking, err := jetstream.New(broker.Conn(test.options...))
		require.NoError(t, err)
		stream, err := outbox.FindStream(t.Context(), asking, test.subject)
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

func TestPartitionsWithoutAMappingAreLogged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start("INGEST_PARTITIONS=2")
	r.logs.await(t, "hits published to hits.> are lost", "deploy/nats-partitions.conf", `hitp.{{partition(2)}}.>`)
	require.NoError(t, r.js.Conn().Publish("hits.c", nil))
	r.awaitTotal(0)
}

func TestSettingsWithoutEffectAreLogged(t *testing.T) {
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

// Without the right to advisories, the worker finds new streams by listing, and logs what is missing.
func TestWithoutTheRightToAdvisoriesNewStreamsAreListed(t *testing.T) {
	t.Parallel()
	rights := server.Permissions{Subscribe: &server.SubjectPermission{Deny: []string{"$JS.EVENT.>"}}}
	r := newRigOn(t, startNATSWithUser(t, "deaf", rights), stack.SharedRedis(t))
	r.createStream(0)
	r.start("NATS_USER=deaf", "NATS_PASSWORD=deaf")
	r.logs.await(t, "may not subscribe to $JS.EVENT.ADVISORY.STREAM.CREATED.*")
	r.publish(3)
	r.awaitTotal(3)
	require.NoError(t, errOf(r.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "HITS_2", Subjects: []string{"more.>"}})))
	require.NoError(t, errOf(r.js.Publish(t.Context(), "more.c", nil)))
	r.awaitHits(4)
}

func TestStreamCheckSucceedsOnlyIfEveryStreamIsListed(t *testing.T) {
	t.Parallel()
	nats, redis := stack.NATS(t), stack.Redis(t)
	r := newRigOn(t, nats, redis)
	settings := parseSettings(t)
	ctx := context.Background()
	w := &streamCheck{
		js: r.js, store: r.store, log: zerolog.Nop(), readable: func() fleet.Globs { return settings.Streams },
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
		if !w.allListed(ctx) || !listed(name) {
			t.Errorf("%s: listed %v", name, listed(name))
		}
	}
	redis.Stop()
	create("HITS_LATE")
	require.False(t, w.allListed(ctx), "with a stream that could not be listed")
	redis.Start()
	stack.Eventually(t, "to be up to date again", func() (bool, string) { return w.allListed(ctx), "" })
	require.True(t, listed("HITS_LATE"))
	nats.Stop()
	require.False(t, w.allListed(ctx), "without NATS")
	nats.Start()
	stack.Eventually(t, "to be up to date again", func() (bool, string) { return w.allListed(ctx), "" })
	w.running.Wait()
}
