package limit

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tallyroll/tests/stack"
)

// Fifty clients of five processes at once take from one key: exactly max are allowed. No hit leaves the
// window while they do, so that is so for cells, too.
func TestConcurrentClientsAreAllowedMax(t *testing.T) {
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
			for _, policy := range Policies() {
				l := adhoc(t, time.Hour, most, policy)
				l.Fail = FailClosed // a decision without Redis would be an error
				var allowed, refused, memory atomic.Int64
				var callers sync.WaitGroup
				for i := range clients {
					callers.Go(func() {
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
							if err == nil && a.Decisions[0].Source == SourceMemory {
								memory.Add(1)
							}
						}
					})
				}
				callers.Wait()
				t.Logf("%s: %d allowed, %d refused, %d of them from memory", policy, allowed.Load(), refused.Load(), memory.Load())
				if allowed.Load() != most || refused.Load() != most {
					t.Errorf("%s: %d were allowed and %d refused, want %d of each", policy, allowed.Load(), refused.Load(), most)
				}
			}
		})
	}
}

// Redis stands still again and again while two processes take. Each of them allows max at most, with and
// without Redis, and both together do if the limit is closed without it.
func TestTwoProcessesWithASlowRedis(t *testing.T) {
	t.Parallel()
	const most, clients, takes = 200, 16, 200
	server, policies := stack.Redis(t), Policies()
	if !stack.All() {
		policies = policies[:1] // the scripts are late alike
	}
	for _, policy := range policies {
		for fail, bound := range map[Fail]int64{FailLocal: 2 * most, FailClosed: most} {
			t.Run(fmt.Sprint(policy, " ", fail), func(t *testing.T) {
				l := &Limit{Name: string(fail), Window: time.Hour, Max: most, Policy: policy, Fail: fail}
				var allowed, late [2]atomic.Int64
				var callers sync.WaitGroup
				for i := range allowed {
					limiter := New(stack.ProgramClient(t, server.URL()), "slow", time.Minute)
					mustTake(t, limiter, takeOf(l, "another", 1)) // connects, and loads the script
					limiter.timeout = after(10 * time.Millisecond)
					for range clients {
						callers.Go(func() {
							for range takes {
								a, err := limiter.Take(t.Context(), []Take{takeOf(l, "alice", 1)})
								var unavailable *UnavailableError
								switch {
								case errors.As(err, &unavailable):
									late[i].Add(1)
								case err != nil:
									t.Error(err)
								case a.Allowed:
									allowed[i].Add(1)
								}
								if err == nil && a.Decisions[0].Source == SourceLocal {
									late[i].Add(1)
								}
								time.Sleep(4 * time.Millisecond) // a client has other work, too
							}
						})
					}
					t.Cleanup(limiter.Wait)
				}
				over := make(chan struct{})
				go func() {
					callers.Wait()
					close(over)
				}()
				for going := true; going; {
					if err := server.Client().Do(t.Context(), "client", "pause", 20, "all").Err(); err != nil {
						t.Error(err)
					}
					select {
					case <-over:
						going = false
					case <-time.After(300 * time.Millisecond):
					}
				}
				sum := allowed[0].Load() + allowed[1].Load()
				t.Logf("%d and %d were allowed; Redis had not decided about %d and %d", allowed[0].Load(), allowed[1].Load(), late[0].Load(), late[1].Load())
				if sum > bound || allowed[0].Load() > most || allowed[1].Load() > most {
					t.Errorf("%d were allowed, want up to %d", sum, bound)
				}
				if late[0].Load()+late[1].Load() == 0 {
					t.Error("Redis was always in time: the test shows nothing")
				}
			})
		}
	}
}
