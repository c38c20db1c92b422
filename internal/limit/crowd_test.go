package limit

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tallyroll/tests/stack"
)

// Fifty clients of five processes at once take from one key: exactly max are allowed. No hit leaves the window
// while they do, so that is so for cells, too.
func TestFiftyClientsAtOnce(t *testing.T) {
	t.Parallel()
	const most, clients, processes = 1000, 50, 5
	for name, start := range map[string]func(*testing.T) stack.Endpoint{
		"server":  func(t *testing.T) stack.Endpoint { return stack.Redis(t) },
		"cluster": func(t *testing.T) stack.Endpoint { return stack.Cluster(t, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis := start(t)
			var limiters []*Limiter
			for range processes {
				limiters = append(limiters, New(stack.ProgramClient(t, redis.URL()), "crowd", 30*time.Second))
			}
			for _, policy := range Policies {
				l := adhoc(t, time.Hour, most, policy)
				l.Fail = FailClosed // a decision without Redis would be an error
				var allowed, refused, memory atomic.Int64
				var crowd sync.WaitGroup
				for i := range clients {
					crowd.Go(func() {
						for range 2 * most / clients {
							a, err := limiters[i%processes].Take(t.Context(), []Take{takeOf(l, "alice", 1)})
							switch {
							case err != nil:
								t.Error(err)
							case a.Allowed:
								allowed.Add(1)
							default:
								refused.Add(1)
							}
							if err == nil && a.Decisions[0].Source == FromMemory {
								memory.Add(1)
							}
						}
					})
				}
				crowd.Wait()
				t.Logf("%s: %d allowed, %d refused, %d of them from memory", policy, allowed.Load(), refused.Load(), memory.Load())
				if allowed.Load() != most || refused.Load() != most {
					t.Errorf("%s: %d were allowed and %d refused, want %d of each", policy, allowed.Load(), refused.Load(), most)
				}
			}
		})
	}
}
