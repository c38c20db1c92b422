package watch

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/watch/history"
	"tallyroll/tests/stack"
)

// An operator removes messages of the stream, or edits its max_age, while states last. Each state is stored
// again, each target receives each change once, also one that waited for it, and the end comes, also from a
// process that has read only what was stored again.
func TestStatesSurviveTheRemovalOfTheirRecords(t *testing.T) {
	t.Parallel()
	// As in production: a process that stalls for longer, just after a removal, can deliver a change again.
	keepLeases := func(s *service) { s.timeouts.lease = 3 * time.Second }
	type removal func(jetstream.JetStream, jetstream.Stream) error
	purge := func(options ...jetstream.StreamPurgeOpt) removal {
		return func(_ jetstream.JetStream, s jetstream.Stream) error {
			return s.Purge(context.Background(), options...)
		}
	}
	for name, remove := range map[string]removal{
		"whole":                purge(),
		"all but one":          purge(jetstream.WithPurgeKeep(1)),
		"states":               purge(jetstream.WithPurgeSubject(history.Subject("tallyroll", "state.>"))),
		"a state":              purge(jetstream.WithPurgeSubject(stateSubject("tallyroll", "r", "k"))),
		"progress":             purge(jetstream.WithPurgeSubject(history.Subject("tallyroll", "delivery.>"))),
		"heartbeat":            purge(jetstream.WithPurgeSubject(history.Subject("tallyroll", history.HeartbeatKind))),
		"all but one per rule": purge(jetstream.WithPurgeSubject(history.Subject("tallyroll", "state.r.>")), jetstream.WithPurgeKeep(1)),
		"old age": func(js jetstream.JetStream, s jetstream.Stream) error {
			config := s.CachedInfo().Config
			config.MaxAge, config.Duplicates = 3*time.Second, time.Second
			_, err := js.UpdateStream(context.Background(), config)
			return err
		},
	} {
		for _, processes := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s, processes: %d", name, processes), func(t *testing.T) {
				t.Parallel()
				broker := stack.SharedNATS(t)
				js := broker.JetStream()
				a, b := &receiver{}, &receiver{failure: "refuse"}
				set := parseRules(t, map[string]*receiver{"a": a, "b": b}, `
- {name: r, key: k, window: 1m, above: 9, to: [a, b]}
- {name: u, key: l, window: 1m, below: 5, to: [a, b]}
- {name: p, key: k, window: 1m, above: 9, for: 1h, to: [a, b]}
`)
				c := newCounters(map[string]int64{"k": 10})
				c.stale = true
				var members []*member
				for i := range processes {
					members = append(members, startMember(t, broker.URL(), c, set, fmt.Sprint("m", i), keepLeases))
				}
				a.await(t, "r", "firing")
				a.await(t, "u", "unknown")
				a.await(t, "p", "pending")
				hasProgress := func() (bool, string) {
					l := newStateStream(js, "tallyroll")
					for _, target := range []string{"a", "b"} {
						if err := l.reread(t.Context(), history.Subject("tallyroll", "delivery."+target)); err != nil {
							return false, err.Error()
						}
					}
					a, b := l.readLease("a"), l.readLease("b")
					return len(a.Waiting) == 0 && a.Cursor == b.Cursor && len(b.Waiting) == 3, fmt.Sprint(a.progress, b.progress)
				}
				stack.Eventually(t, "the progress to be stored", hasProgress)
				stream, err := js.Stream(t.Context(), history.StreamName("tallyroll"))
				require.NoError(t, err)
				last := stream.CachedInfo().State.LastSeq
				require.NoError(t, remove(js, stream))
				isStored := func() (bool, string) {
					var states []string
					isNew := true
					for _, e := range readRecords(t, js) {
						states = append(states, fmt.Sprint(e.Rule, " ", e.State))
						isNew = isNew && e.seq > last+20
					}
					slices.Sort(states)
					text := strings.Join(slices.Compact(states), ", ")
					return text == "p pending, r firing, u unknown" && (name != "old age" || isNew), text
				}
				stack.Eventually(t, "the states to be stored again", isStored)
				stack.Eventually(t, "the progress to be stored again", hasProgress)
				next := startMember(t, broker.URL(), c, set, "next", keepLeases)
				for _, m := range members {
					m.kill()
				}
				b.fail("")
				b.await(t, "r", "firing")
				b.await(t, "u", "unknown")
				c.change(func() { c.totals["k"], c.totals["l"], c.stale = 0, 5, false })
				for _, receiver := range []*receiver{a, b} {
					receiver.await(t, "r", "firing resolved")
					receiver.await(t, "u", "unknown ok")
					receiver.await(t, "p", "pending ok")
				}
				require.Zero(t, a.repeated, "changes that a received again")
				next.kill()
			})
		}
	}
}
