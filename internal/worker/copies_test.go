package worker

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// send stores hits of the counter c, each in a message of its own.
func (r *rig) send(subject string, hits int) {
	r.t.Helper()
	for range hits {
		require.NoError(r.t, errOf(r.js.Publish(r.t.Context(), subject, []byte(`{"key":"c"}`))))
	}
}

func (r *rig) createCopy(config jetstream.StreamConfig) jetstream.Stream {
	r.t.Helper()
	s, err := r.js.CreateStream(r.t.Context(), config)
	require.NoError(r.t, err)
	return s
}

// awaitMessages waits until a stream has received so many messages.
func awaitMessages(t *testing.T, s jetstream.Stream, last uint64) {
	t.Helper()
	stack.Eventually(t, "messages to be copied", func() (bool, string) {
		info, err := s.Info(t.Context())
		return err == nil && info.State.LastSeq == last, fmt.Sprintf("%+v %v", info.State, err)
	})
}

var copiesOfHits = []jetstream.StreamConfig{
	{Name: "HITS_BACKUP", Mirror: &jetstream.StreamSource{Name: "HITS"}},
	{Name: "HITS_V2", Subjects: []string{"v2.>"}, Sources: []*jetstream.StreamSource{{Name: "HITS"}}},
	{Name: "HITS_AGAIN", Subjects: []string{"again.>"}},
}

// A hit that is stored in a stream and in copies of it counts once, whether the copies or the worker were
// there first, and however many workers there are. What a copy has of its own counts. No copy holds as_of
// back.
func TestCopiesOfAStreamThatCountsCountNothing(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]bool{"before the worker": false, "while it counts": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.createCopy(jetstream.StreamConfig{Name: "HITS", Subjects: []string{"hits.>"}, RePublish: &jetstream.RePublish{Destination: "again.>"}})
			var handles []jetstream.Stream
			createCopies := func() {
				for _, config := range copiesOfHits {
					handles = append(handles, r.createCopy(config))
				}
			}
			if !late {
				createCopies()
			}
			r.send("hits.c", 3)
			w := r.start()
			other := r.start()
			if late {
				r.awaitTotal(3)
				createCopies()
			}
			r.send("hits.c", 4)
			r.send("v2.c", 2)
			awaitMessages(t, handles[0], 7)
			awaitMessages(t, handles[1], 9)
			complete := r.awaitTotal(9).Complete
			for _, parts := range [][]string{
				{"ready\n", "stream HITS_BACKUP: it mirrors HITS, which counts", "INGEST_STREAMS"},
				{"stream HITS_V2 holds copies of messages of HITS, which counts", "INGEST_STREAMS"},
				{"stream HITS_AGAIN holds copies of messages of HITS, which counts", "INGEST_STREAMS"},
			} {
				stack.Eventually(t, fmt.Sprint("/readyz of a worker to say ", parts), func() (bool, string) {
					one, _ := w.get("/readyz")
					two, _ := other.get("/readyz")
					return containsAll(one, parts) || containsAll(two, parts), one + two
				})
				r.logs.await(t, parts[len(parts)-2])
			}
			listed, err := r.store.Streams(t.Context())
			require.NoError(t, err)
			require.NotContains(t, listed, "HITS_BACKUP")

			require.NoError(t, r.js.DeleteStream(t.Context(), "HITS_BACKUP"))
			stack.Eventually(t, "the mirror to be forgotten", func() (bool, string) {
				one, _ := w.get("/readyz")
				two, _ := other.get("/readyz")
				return !strings.Contains(one+two, "HITS_BACKUP"), one + two
			})
			r.send("hits.c", 1)
			require.Equal(t, complete, r.awaitTotal(10).Complete)
		})
	}
}

// A mirror of a stream that is gone continues after what counted there, if its origin is taken out of
// INGEST_STREAMS, or if it is promoted.
func TestAMirrorContinuesAfterItsOrigin(t *testing.T) {
	t.Parallel()
	for name, promoted := range map[string]bool{"alone": false, "promoted": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.createCopy(jetstream.StreamConfig{Name: "HITS", Subjects: []string{"hits.>"}})
			mirror := r.createCopy(copiesOfHits[0])
			w := r.start()
			r.send("hits.c", 5)
			r.awaitTotal(5)
			w.stop()
			r.send("hits.c", 3)
			awaitMessages(t, mirror, 8)
			require.NoError(t, r.js.DeleteStream(t.Context(), "HITS"))
			w = r.start()
			r.logs.await(t, "the stream was deleted: it no longer holds as_of back")
			r.awaitHits(5)
			w.stop()
			if promoted {
				config := mirror.CachedInfo().Config
				config.Mirror, config.Subjects = nil, []string{"hits.>"}
				require.NoError(t, errOf(r.js.UpdateStream(t.Context(), config)))
			}
			r.start("INGEST_STREAMS=HITS_BACKUP")
			r.awaitHits(8)
			if promoted { // otherwise as_of ends with the mirror's last message
				r.send("hits.c", 1)
				r.awaitTotal(9)
			}
		})
	}
}

func containsAll(text string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}
