package faults_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tallyroll/internal/limit"
	"tallyroll/tests/stack"
)

// These tests are here and not in internal/limit because they need this package's proxy and are as slow and
// as rough as its other faults: make faults runs all of them with more rounds. They call the limiter and not
// the program, because only so can they tell a take whose reply was lost from one that was refused.

const (
	clients   = 50
	processes = 4
)

// crowd is fifty clients of several processes who take from one key.
type crowd struct {
	t        *testing.T
	limiters []*limit.Limiter
	take     limit.Take

	allowed atomic.Int64 // by Redis
	local   atomic.Int64 // allowed without it
	unknown atomic.Int64 // no reply: counted or not
	ended   atomic.Bool
	running sync.WaitGroup
}

func newCrowd(t *testing.T, redis stack.Endpoint, n int, timeout time.Duration, l *limit.Limit) *crowd {
	t.Helper()
	c := &crowd{t: t, take: limit.Take{Limit: l, Caller: "k", Key: "k", N: 1}}
	for range n {
		c.limiters = append(c.limiters, limit.New(stack.ProgramClientOf(t, redis), "crowd", timeout))
	}
	return c
}

// start lets every client take again and again until Redis refuses or stop is called.
func (c *crowd) start() {
	c.ended.Store(false)
	for i := range clients {
		c.running.Go(func() {
			for !c.ended.Load() && c.once(c.limiters[i%len(c.limiters)]) {
				time.Sleep(5 * time.Millisecond) // a client has other work, too
			}
		})
	}
}

// once takes once, and reports whether there can be more.
func (c *crowd) once(limiter *limit.Limiter) (more bool) {
	a, err := limiter.Take(c.t.Context(), []limit.Take{c.take})
	var unavailable *limit.UnavailableError
	switch {
	case errors.As(err, &unavailable):
		c.unknown.Add(1)
	case err != nil:
		c.t.Error(err)
		return false
	case a.Decisions[0].Source == limit.SourceLocal:
		if a.Allowed {
			c.local.Add(1)
		}
	case a.Allowed:
		c.allowed.Add(1)
	default:
		return false
	}
	return true
}

func (c *crowd) stop() {
	c.ended.Store(true)
	c.running.Wait()
}

func (c *crowd) reaches(n int64) {
	c.t.Helper()
	stack.Eventually(c.t, "takes to be allowed", func() (bool, string) {
		return c.allowed.Load() >= n, ""
	})
}

// kept is how many hits of the key a server has.
func (c *crowd) kept(server *stack.RedisServer) int64 {
	c.t.Helper()
	a, err := limit.New(server.Client(), "crowd", 10*time.Second).Look(c.t.Context(), []limit.Take{c.take})
	if err != nil || a.Decisions[0].Source != limit.SourceRedis {
		c.t.Fatalf("look at %s: %+v, %v", server.Addr(), a, err)
	}
	return a.Decisions[0].Upper
}

// failOver is a Redis whose master can be lost: by Sentinels, or by a name whose old connections stay.
type failOver struct {
	redis        stack.Endpoint
	old, replica *stack.RedisServer
	lose, back   func()
}

var failOvers = map[string]func(t *testing.T, w wire) failOver{
	"Sentinels": func(t *testing.T, w wire) failOver {
		s := stack.Sentinels(t, 1, w.options...)
		return failOver{s, s.Servers[0], s.Servers[1], s.Servers[0].Kill, s.WaitOK}
	},
	"by name": func(t *testing.T, w wire) failOver {
		n := stack.RedisByName(t, w.options...)
		return failOver{n, n.Master, n.Replica, n.Demote, n.Promote}
	},
}

// A master dies or is demoted while fifty clients take. What its replica had not received can be allowed once
// more, and nothing beyond that: with the replica as close behind as replication keeps it, and with one that
// was cut off.
func TestLimitsWhenSentinelsFailOver(t *testing.T) { overEachWire(t, testLimitsWhenSentinelsFailOver) }

func testLimitsWhenSentinelsFailOver(t *testing.T, w wire) {
	policies := []limit.Policy{limit.Log}
	if full() {
		policies = limit.Policies()
	}
	more := full() || stack.All()
	for name, cut := range map[string]bool{"replica follows": false, "replica cut off": true} {
		if !cut && !more {
			continue
		}
		for kind, start := range failOvers {
			for _, policy := range policies {
				t.Run(fmt.Sprint(name, " ", kind, " ", policy), func(t *testing.T) {
					t.Parallel()
					const most = 1000
					f := start(t, w)
					old, replica := f.old, f.replica
					// Only Redis allows. It has long to answer: each lost reply would hide a take that is allowed again.
					c := newCrowd(t, w.to(f.redis), processes, stack.Hung, &limit.Limit{Window: time.Hour, Max: most, Policy: policy, Fail: limit.FailClosed})
					c.start()
					c.reaches(200)
					if cut {
						old.CutReplicas()
						c.reaches(400)
					}
					f.lose()
					c.stop()
					before, received := c.allowed.Load(), c.kept(replica)
					lost := max(0, before-received)
					f.back()
					c.start()
					c.running.Wait() // all are refused
					allowed := c.allowed.Load()
					t.Logf("%d were allowed of %d: %d before the fail-over, of which the replica lacked %d; %d replies were missing", allowed, most, before, lost, c.unknown.Load())
					if allowed > most+lost {
						t.Errorf("%d were allowed, want up to %d and the %d that were not replicated", allowed, most, lost)
					}
					if before >= most || cut && lost == 0 {
						t.Errorf("%d were allowed before the fail-over, and %d were lost: the test shows nothing", before, lost)
					}
					if cut && allowed <= most {
						t.Errorf("%d were allowed: what the replica lacked was not allowed again", allowed)
					}
				})
			}
		}
	}
}

// Places are held, and Redis comes back without some of them: a replica is promoted that lacks the newest, or
// a server is restarted without its file. As many as it lacks are given out again, and none beyond: the
// holders of the lost ones hear it when they renew. If the limit is local without Redis, a lease that its
// process has renewed meanwhile is held on.
func TestPlacesWhenRedisLacksThem(t *testing.T) { overEachWire(t, testPlacesWhenRedisLacksThem) }

func testPlacesWhenRedisLacksThem(t *testing.T, w wire) {
	more := full() || stack.All()
	type loss struct {
		all bool // or only what was taken after prepare
		// start returns a Redis, and what comes before the last takes, what makes it lose them, and what brings it
		// back.
		start func(t *testing.T) (redis stack.Endpoint, prepare, crash, back func())
	}
	losses := map[string]loss{
		"it is restarted without its file": {true, func(t *testing.T) (stack.Endpoint, func(), func(), func()) {
			s := stack.Redis(t, append(w.options, stack.RedisArgs("--appendonly", "no"))...)
			return s, func() {}, s.Kill, s.Start
		}},
	}
	for kind, start := range failOvers {
		losses["a replica is promoted, "+kind] = loss{false, func(t *testing.T) (stack.Endpoint, func(), func(), func()) {
			f := start(t, w)
			return f.redis, func() {
				stack.Eventually(t, "the replica to follow", func() (bool, string) {
					n := f.old.Client().Wait(t.Context(), 1, time.Second).Val()
					return n == 1 && len(stack.Scan(t, f.replica.Client(), "*limit:concurrent*")) == 1, ""
				})
				f.old.CutReplicas()
			}, f.lose, f.back
		}}
	}
	for name, lose := range losses {
		if !lose.all && !more { // make test has a replica cut off above
			continue
		}
		for _, fail := range []limit.Fail{limit.FailClosed, limit.FailLocal} {
			t.Run(name+" "+string(fail), func(t *testing.T) {
				t.Parallel()
				const most = 3
				redis, prepare, crash, back := lose.start(t)
				l := &limit.Limit{Name: "places", Window: time.Hour, Max: most, Policy: limit.Concurrent, Fail: fail}
				c := newCrowd(t, w.to(redis), 2, stack.Hung, l)
				place := func(lease string) limit.Take { return limit.Take{Limit: l, Caller: "k", Key: "k", N: 1, Lease: lease} }
				take := func(by int, lease string) bool {
					t.Helper()
					a, err := c.limiters[by].Take(t.Context(), []limit.Take{place(lease)})
					if err != nil || a.Decisions[0].Source != limit.SourceRedis {
						t.Fatalf("%s: %+v %v", lease, a, err)
					}
					return a.Allowed
				}
				renew := func(lease string) (bool, limit.Source, error) {
					held, err := c.limiters[0].Renew(t.Context(), place(lease))
					return held.Held, held.Source, err
				}
				held := take(0, "old")
				prepare()
				if !held || !take(0, "newer") || !take(0, "newest") || take(1, "refused") {
					t.Fatal("Redis gives out other places than there are")
				}
				crash()
				// One of the holders renews while Redis is away.
				kept, from, err := renew("newest")
				var unavailable *limit.UnavailableError
				if fail == limit.FailClosed && !errors.As(err, &unavailable) || fail == limit.FailLocal && (!kept || from != limit.SourceLocal) {
					t.Errorf("while Redis is away: %v %s %v", kept, from, err)
				}
				back()
				lacks := 2
				if lose.all {
					lacks = 3
				}
				for _, limiter := range c.limiters {
					stack.Eventually(t, "the Redis that lacks them to decide", func() (bool, string) {
						a, err := limiter.Look(t.Context(), []limit.Take{place("")})
						return err == nil && a.Decisions[0].Source == limit.SourceRedis && a.Decisions[0].Upper < most, fmt.Sprint(a, err)
					})
				}
				again := 0
				for i := range 2 * most {
					if take(1, fmt.Sprint("again-", i)) {
						again++
					}
				}
				if again != lacks {
					t.Errorf("%d places were given out again, and Redis lacks %d", again, lacks)
				}
				for lease, want := range map[string]bool{"old": !lose.all, "newer": false, "newest": fail == limit.FailLocal} {
					if kept, from, err := renew(lease); err != nil || kept != want || from != limit.SourceRedis {
						t.Errorf("%s is renewed: %v by %s %v, want %v", lease, kept, from, err, want)
					}
				}
				if take(1, "one-more") {
					t.Error("another place was given out")
				}
			})
		}
	}
}

// A bad network loses takes on their way, and replies. Redis never allows more than max. If the limit is
// local meanwhile, the process allows up to max, what Redis has allowed it included. Each lost reply can let
// a take, and all hits that were owed with it, count once more, so fewer may be allowed. But none is refused
// before Redis has max hits together with those that the process allowed and may still owe.
func TestLimitsOverABadNetwork(t *testing.T) {
	t.Parallel()
	server := stack.Redis(t)
	p := startProxy(t, server.Addr(), nil)
	p.trouble.Store(true)
	most := int64(rounds(1000, 3000, 50_000))
	for _, fail := range []limit.Fail{limit.FailClosed, limit.FailLocal} {
		for _, policy := range limit.Policies() {
			c := newCrowd(t, p, 1, limit.DefaultTimeout, &limit.Limit{Window: time.Hour, Max: most, Policy: policy, Fail: fail})
			c.take.Key = string(fail)
			c.start()
			c.running.Wait()
			kept := c.kept(server)
			t.Logf("%s, %s: of %d Redis allowed %d and kept %d, the process %d; %d replies were missing", policy, fail, most, c.allowed.Load(), kept, c.local.Load(), c.unknown.Load())
			if all := c.allowed.Load() + c.local.Load(); all > most {
				t.Errorf("%s, %s: %d were allowed of %d", policy, fail, all, most)
			}
			if kept > most || kept+c.local.Load() < most {
				t.Errorf("%s, %s: Redis has %d hits", policy, fail, kept)
			}
		}
	}
	if p.faults.Load() == 0 {
		t.Error("nothing went wrong: the test shows nothing")
	}
}
