package limit

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// Redis has little memory and may evict nothing. However many keys there are, it is not used for more than
// that, and looks, refusals and give-backs go on.
func TestFullRedisIsNotUsedForMore(t *testing.T) {
	t.Parallel()
	const megabytes, slack, keys = 4, 4, 24_000 // slack is for buffers of clients
	for _, policy := range Policies() {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			server := stack.Redis(t, stack.RedisArgs("--maxmemory", fmt.Sprint(megabytes<<20), "--maxmemory-policy", "noeviction", "--appendonly", "no"))
			limiter := New(stack.ProgramClient(t, server.URL()), "full", 30*time.Second)
			l := &Limit{Window: time.Hour, Max: 100, Policy: policy, Fail: FailClosed}
			mustTake(t, limiter, takeOf(l, "first", 60), takeOf(l, "second", 100))
			var full int
			var mu sync.Mutex
			var callers sync.WaitGroup
			for worker := range 16 {
				callers.Go(func() {
					for i := worker; i < keys; i += 16 {
						_, err := limiter.Take(t.Context(), []Take{takeOf(l, fmt.Sprint("key-", i), 50)})
						mu.Lock()
						switch {
						case errors.Is(err, ErrFull):
							full++
						case err != nil:
							t.Error(err)
						}
						mu.Unlock()
						if err == nil && i >= keys/2 { // a second take of a key
							_, _ = limiter.Take(t.Context(), []Take{takeOf(l, fmt.Sprint("key-", i), 50)})
						}
					}
				})
			}
			callers.Wait()
			info := server.Client().Info(t.Context(), "memory").Val()
			_, rest, _ := strings.Cut(info, "used_memory:")
			var used int64
			require.NoError(t, errOf(fmt.Sscan(rest, &used)))
			t.Logf("of %d takes %d were refused for want of memory; Redis uses %.1f MB", keys, full, float64(used)/(1<<20))
			if used > (megabytes+slack)<<20 {
				t.Errorf("Redis uses %d bytes, and has %d MB", used, megabytes)
			}
			if full == 0 {
				t.Fatal("Redis was never full: the test shows nothing")
			}

			// From here on it stays full, also if buffers of its clients shrink.
			require.NoError(t, server.Client().ConfigSet(t.Context(), "maxmemory", "1").Err())

			// What needs no memory goes on.
			for _, c := range []struct {
				key       string
				n         int64
				allowed   bool
				remaining int64
			}{{"first", 41, false, 40}, {"second", 1, false, 0}, {"first", -10, true, 50}, {"second", -1, true, 1}, {"second", -50, true, 51}, {"second", -200, true, 100}} {
				a := mustTake(t, limiter, takeOf(l, c.key, c.n))
				if d := a.Decisions[0]; a.Allowed != c.allowed || d.Remaining != c.remaining || d.Source != SourceRedis {
					t.Errorf("%s, n %d: %+v", c.key, c.n, d)
				}
			}
			if a, err := limiter.Look(t.Context(), []Take{takeOf(l, "first", 1)}); err != nil || !a.Allowed || a.Decisions[0].Source != SourceRedis {
				t.Errorf("a look: %+v, %v", a, err)
			}

			// What needs memory is for the fail mode, and Redis is not left alone for it.
			for range failuresInARow + 1 {
				take := takeOf(l, "late", 60)
				_, err := limiter.Take(t.Context(), []Take{take})
				var unavailable *UnavailableError
				if !errors.As(err, &unavailable) || !errors.Is(err, ErrFull) {
					t.Errorf("closed: %v", err)
				}
				take.Limit = &Limit{Window: 2 * time.Hour, Max: 100, Policy: policy, Fail: FailOpen}
				if a := mustTake(t, limiter, take); !a.Allowed || a.Decisions[0].Source != SourceLocal {
					t.Errorf("open: %+v", a)
				}
			}
			local := &Limit{Window: 3 * time.Hour, Max: 100, Policy: policy, Fail: FailLocal}
			for i, allowed := range []bool{true, false, true} { // 60, 50, 40
				a := mustTake(t, limiter, takeOf(local, "late", 60-int64(i)*10))
				if a.Allowed != allowed || allowed && a.Decisions[0].Source != SourceLocal {
					t.Errorf("local, %d: %+v", i, a)
				}
			}
			require.NoError(t, limiter.Reset(t.Context(), takeOf(l, "first", 1)))

			// A script that has begun may not be half done.
			several := []Take{takeOf(l, "first", -1), takeOf(l, "third", 1)}
			if _, err := limiter.Take(t.Context(), several); !errors.Is(err, ErrFull) {
				t.Errorf("a give-back beside a take: %v", err)
			}
			require.NoError(t, server.Client().ConfigSet(t.Context(), "maxmemory", "0").Err())
			a := mustTake(t, limiter, takeOf(local, "late", 1))
			if d := a.Decisions[0]; d.Source != SourceRedis || a.Allowed || d.Remaining != 0 {
				t.Errorf("Redis has memory again, and was not told of a hundred hits: %+v", d)
			}
		})
	}
}

// If the clock goes back by more than a window, a key restarts, also with memory to spare only for that.
func TestFullRedisWhoseClockWentBackBeginsAgain(t *testing.T) {
	t.Parallel()
	server := stack.Redis(t)
	client := stack.ProgramClient(t, server.URL())
	for _, policy := range Policies() {
		w, l := newWorld(t, client, "full-back"), adhoc(t, time.Minute, 5, policy)
		l.Fail = FailClosed
		w.at(1_000_000)
		w.take(takeOf(l, "alice", 5))
		w.at(0)
		require.NoError(t, server.Client().ConfigSet(t.Context(), "maxmemory", "1").Err())
		_, err := w.limiter.Take(t.Context(), []Take{takeOf(l, "alice", 1)})
		require.ErrorIs(t, err, ErrFull, policy)
		require.NoError(t, server.Client().ConfigSet(t.Context(), "maxmemory", "0").Err())
		require.EqualValues(t, 4, w.take(takeOf(l, "alice", 1)).Decisions[0].Remaining, policy)
	}
}
