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

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/boot"
	"tallyroll/internal/rejects"
	"tallyroll/tests/stack"
)

// matching are the streams that the worker would read.
func matching(t *testing.T, w *ownStreams) ([]string, error) {
	t.Helper()
	all, err := listStreams(t.Context(), w.js)
	return slices.DeleteFunc(all, func(name string) bool { return !w.settings.Streams.Match(name) }), err
}

func TestCreateStreams(t *testing.T) {
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
			js := stack.NATS(t).JetStream()
			require.NoError(t, rejects.Create(t.Context(), js, 1, time.Hour))
			w := &ownStreams{settings: parse(t, append(test.env, "INGEST_MAX_AGE=3h")...), js: js, log: zerolog.Nop()}
			if names, err := matching(t, w); err != nil || len(names) > 0 {
				t.Fatalf("streams before: %v %v", names, err)
			}
			for range 2 { // again where they are there already: another worker was faster
				names, err := w.create(t.Context(), w.wanting(nil))
				if err != nil || len(names) != len(test.subjects) {
					t.Fatalf("created %v: %v", names, err)
				}
			}
			names, err := matching(t, w)
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
		w := &ownStreams{settings: parse(t, "INGEST_STREAMS=CLICKS"), js: stack.NATS(t).JetStream(), log: zerolog.Nop()}
		if _, err := w.create(t.Context(), w.wanting(nil)); err == nil || !strings.Contains(err.Error(), "CLICKS") {
			t.Errorf("error %v, want one that names INGEST_STREAMS", err)
		}
	})
}

// A worker that dies while it makes the streams leaves a part of them.
func TestMissingStreamsAreMade(t *testing.T) {
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
		{"one of somebody else's", "HITS", []string{"INGEST_PARTITIONS=4"}, ""},
		{"some that this worker does not read", "HITS_0", []string{"INGEST_PARTITIONS=4", "INGEST_STREAMS=HITS_[01]"}, "HITS_1"},
		{"one stream only", "HITS_0", nil, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := &ownStreams{settings: parse(t, test.env...)}
			if got := slices.Sorted(maps.Keys(w.wanting(strings.Fields(test.there)))); !slices.Equal(got, strings.Fields(test.want)) {
				t.Errorf("%v are to be made, want %s", got, test.want)
			}
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
	r.settled(3)
}

// A cluster that is coming up refuses for a while what it will do.
func TestAwaitLeader(t *testing.T) {
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
		if took := time.Since(began); !errors.Is(err, none) || took < placeWithin || took > placeWithin+time.Second {
			t.Errorf("%v after %v", err, took)
		}
		settings := parse(t, "INGEST_REPLICAS=3")
		var setting *boot.SettingError
		if err := settings.refused(err); !errors.As(err, &setting) || setting.Key != "INGEST_REPLICAS" || setting.Value != "3" {
			t.Errorf("%v names no setting", err)
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	err := awaitLeader(ctx, zerolog.Nop(), func(context.Context) error { cancel(); return nats.ErrTimeout })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v when the worker is stopped while it waits", err)
	}
}
