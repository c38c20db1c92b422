package limit

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// A limit that always refuses, or is unlimited, decides without Redis: no server answers here, and the limits
// are closed.
func TestLimitsWithoutNumbersNeedNoRedis(t *testing.T) {
	t.Parallel()
	limiter := New(redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1}), "test", time.Minute)
	for _, policy := range NamedPolicies() {
		for _, mode := range Modes {
			t.Run(fmt.Sprint(policy, " ", mode), func(t *testing.T) {
				takeUnder := func(name string, unlimited bool) Take {
					l := &Limit{Name: name, Window: time.Minute, Policy: policy, Mode: mode, Fail: FailClosed, Unlimited: unlimited}
					require.NoError(t, l.Check())
					take := Take{Limit: l, Caller: "alice", Key: "alice", N: 1}
					if policy == Concurrent {
						take.Lease = "a"
					}
					return take
				}
				never, free := takeUnder("never", false), takeUnder("free", true)
				for _, ask := range []func() (Answer, error){
					func() (Answer, error) { return limiter.Take(t.Context(), []Take{never}) },
					func() (Answer, error) { return limiter.Look(t.Context(), []Take{never}) },
					func() (Answer, error) { return limiter.Take(t.Context(), []Take{free, never}) },
					func() (Answer, error) { return limiter.Look(t.Context(), []Take{free, never}) },
				} {
					a, err := ask()
					require.NoError(t, err)
					d := a.Decisive()
					require.Equal(t, mode == Shadow, a.Allowed)
					require.Equal(t, Decision{
						Take: never, Allowed: mode == Shadow, Shadow: mode == Shadow, Certain: true, RetryAfter: time.Minute, Source: SourceMemory,
					}, *d)
				}
				a, err := limiter.Take(t.Context(), []Take{free})
				require.NoError(t, err)
				d := a.Decisions[0]
				require.True(t, a.Allowed && d.Allowed && d.WouldAllow && d.Certain && d.Remaining == MaxHits, "%+v", d)
				require.Equal(t, policy == Concurrent, d.EndsIn == time.Minute && time.Until(d.Ends) > 0)
				fields, rate := a.RateFields()
				require.Empty(t, fields+rate)
				if policy == Concurrent {
					lease, err := limiter.Renew(t.Context(), free)
					require.NoError(t, err)
					require.True(t, lease.Held && lease.EndsIn == time.Minute)
					held, err := limiter.Release(t.Context(), free)
					require.NoError(t, err)
					require.True(t, held)
					return
				}
				free.N = 1_000_000
				a, err = limiter.Take(t.Context(), []Take{free})
				require.NoError(t, err)
				require.True(t, a.Allowed, "more than a request of the policy log may have")
				free.ID = "r1"
				a, err = limiter.Take(t.Context(), []Take{free})
				require.NoError(t, err)
				require.True(t, a.Allowed)
				if free.N = 7; policy != Stream {
					a, err = limiter.Settle(t.Context(), []Take{free})
					require.NoError(t, err)
					require.EqualValues(t, 7, *a.Decisions[0].Settled)
				}
				never.N = -1
				a, err = limiter.Take(t.Context(), []Take{never})
				require.NoError(t, err)
				require.True(t, a.Allowed, "nothing is given back")
			})
		}
	}
	require.Error(t, (&Limit{Window: time.Minute}).Check(), "a request's own max is 1 or more")
}

// With such limits in one request, those with numbers decide as ever, and count all or nothing.
func TestLimitsWithoutNumbersAmongOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, backends[2].start(t), "fixed")
	l := func(name string, most int64, unlimited bool) Take {
		return takeOf(&Limit{Name: name, Window: time.Minute, Max: most, Policy: Log, Mode: Enforce, Fail: FailClosed, Unlimited: unlimited}, "alice", 1)
	}
	two, free, never := l("two", 2, false), l("free", 0, true), l("never", 0, false)
	require.False(t, w.take(two, never).Allowed)
	require.False(t, w.look(never, two).Allowed)
	for i := range 3 {
		a := w.take(free, two)
		require.Equal(t, i < 2, a.Allowed)
		require.Equal(t, i == 2, a.Decisive().Take.Limit == two.Limit && !a.Decisive().Allowed)
	}
}
