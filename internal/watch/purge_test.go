package watch

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/watch/history"
	"tallyroll/tests/stack"
)

// An operator removes messages of the stream, or edits its max_age, while a rule fires. Its state is stored
// again, and its end is delivered, also by a process that has only read that.
func TestStatesSurviveTheRemovalOfTheirRecords(t *testing.T) {
	t.Parallel()
	type removal func(jetstream.JetStream, jetstream.Stream) error
	purge := func(options ...jetstream.StreamPurgeOpt) removal {
		return func(_ jetstream.JetStream, s jetstream.Stream) error {
			return s.Purge(context.Background(), options...)
		}
	}
	for name, remove := range map[string]removal{
		"whole":     purge(),
		"states":    purge(jetstream.WithPurgeSubject(history.Subject("tallyroll", "state.>"))),
		"progress":  purge(jetstream.WithPurgeSubject(history.Subject("tallyroll", "delivery.>"))),
		"heartbeat": purge(jetstream.WithPurgeSubject(history.Subject("tallyroll", history.HeartbeatKind))),
		"old age": func(js jetstream.JetStream, s jetstream.Stream) error {
			config := s.CachedInfo().Config
			config.MaxAge, config.Duplicates = 3*time.Second, time.Second
			_, err := js.UpdateStream(context.Background(), config)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker, a := stack.SharedNATS(t), &receiver{}
			js := broker.JetStream()
			set := parseRules(t, map[string]*receiver{"a": a}, "- {name: r, key: k, window: 1m, above: 9, to: [a]}\n")
			c := newCounters(map[string]int64{"k": 10})
			first := startMember(t, broker.URL(), c, set, "m")
			a.await(t, "r", "firing")
			first.awaitDeliveries(t, "a", "delivered", 1)
			stream, err := js.Stream(t.Context(), history.StreamName("tallyroll"))
			require.NoError(t, err)
			last := stream.CachedInfo().State.LastSeq
			require.NoError(t, remove(js, stream))
			stack.Eventually(t, "what was removed to be stored again", func() (bool, string) {
				states := newStateStream(js, "tallyroll")
				isStored := true
				for _, subject := range []string{stateSubject("tallyroll", "r", "k"), history.Subject("tallyroll", "delivery.a"), history.Subject("tallyroll", history.HeartbeatKind)} {
					isStored = isStored && states.reread(t.Context(), subject) == nil
				}
				_, heartbeatSeq, _ := states.lastHeartbeat()
				got := readRecords(t, js)
				isStored = isStored && states.readLease("a").seq > last && heartbeatSeq > last && len(got) > 0
				return isStored && (name != "old age" || got[0].seq > last), fmt.Sprint(got, states.leases)
			})
			startMember(t, broker.URL(), c, set, "next")
			first.kill()
			c.set("k", 0)
			a.await(t, "r", "firing resolved")
		})
	}
}
