package limit

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// Redis stands still for longer than takes wait, and then does what they asked for. Their hits are counted, though the caller
// was refused, and once more if this process has allowed them: the limit refuses too much, never too little, and for a window.
// A give-back that was late is made, too: who gives back again gives back twice.
func TestLateTakesAreCounted(t *testing.T) {
	t.Parallel()
	const most, late = 100, 7
	server := stack.Redis(t)
	limiter := New(stack.ProgramClient(t, server.URL()), "late", time.Minute)
	other := New(stack.ProgramClient(t, server.URL()), "late", time.Minute)
	// send takes n hits while Redis stands still, and waits until as many are left as come of it.
	send := func(l *Limit, n, left int64) (Answer, error) {
		server.Pause()
		limiter.timeout = after(50 * time.Millisecond)
		a, err := limiter.Take(t.Context(), []Take{takeOf(l, "alice", n)})
		limiter.timeout = after(time.Minute)
		server.Resume()
		stack.Eventually(t, "the late take to be counted", func() (bool, string) {
			d := mustTake(t, other, takeOf(l, "alice", 0)).Decisions[0]
			return d.Remaining == left, fmt.Sprintf("%s, %s: %+v", l.Policy, l.Fail, d)
		})
		return a, err
	}
	var unavailable *UnavailableError
	for _, policy := range Policies {
		for fail, knows := range map[Fail]int64{FailClosed: 0, FailLocal: late, FailOpen: 0} {
			l := &Limit{Name: string(fail), Window: time.Hour, Max: most, Policy: policy, Fail: fail}
			mustTake(t, limiter, takeOf(l, "alice", 1))
			a, err := send(l, late, most-1-late)
			if fail == FailClosed {
				require.ErrorAs(t, err, &unavailable)
			} else if err != nil || !a.Allowed || a.Decisions[0].Source != FromLocal {
				t.Errorf("%s: %+v, %v", fail, a, err)
			}
			if a := mustTake(t, limiter, takeOf(l, "alice", 1)); !a.Allowed || a.Decisions[0].Remaining != most-2-late-knows {
				t.Errorf("%s: afterwards %+v, want %d left", fail, a, most-2-late-knows)
			}
		}
		l := &Limit{Window: time.Hour, Max: 10, Policy: policy, Fail: FailClosed}
		mustTake(t, limiter, takeOf(l, "alice", 5))
		require.ErrorAs(t, errOf(send(l, -2, 7)), &unavailable)
		require.EqualValues(t, 9, mustTake(t, limiter, takeOf(l, "alice", -2)).Decisions[0].Remaining)
	}
}

// A take that has waited for a connection until it was too late is never sent.
func TestTakeThatIsTooLateIsNotSent(t *testing.T) {
	t.Parallel()
	server := stack.Redis(t)
	options, err := redis.ParseURL(server.URL())
	require.NoError(t, err)
	var dials sync.Mutex // held: nobody gets a connection
	options.MaxRetries, options.DialerRetries, options.ContextTimeoutEnabled = -1, 1, true
	options.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials.Lock()
		defer dials.Unlock()
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
	client := redis.NewClient(options)
	defer client.Close()
	limiter := New(client, "unsent", 20*time.Millisecond)
	l := &Limit{Window: time.Hour, Max: 5, Policy: Log, Fail: FailClosed}
	sent := watchCommands(client)
	dials.Lock()
	_, err = limiter.Take(t.Context(), []Take{takeOf(l, "alice", 1)})
	var unavailable *UnavailableError
	require.ErrorAs(t, err, &unavailable)
	limiter.Wait() // though nothing has answered
	dials.Unlock()
	if n := stack.Scan(t, server.Client(), "*"); len(n) > 0 || len(sent.scripts()) != 1 {
		t.Errorf("Redis has %v", n)
	}
}

// A limit whose Redis is slow does not put others into their fail mode.
func TestSlowKeyLeavesOthersToRedis(t *testing.T) {
	t.Parallel()
	client := backends[2].start(t)
	ended := make(chan struct{})
	client.AddHook(hook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if !slices.ContainsFunc(cmd.Args(), func(arg any) bool { return strings.HasSuffix(fmt.Sprint(arg), ":slow") }) {
			return next(ctx, cmd)
		}
		select {
		case <-ended:
			return next(ctx, cmd)
		case <-ctx.Done():
			cmd.SetErr(ctx.Err())
			return ctx.Err()
		}
	}))
	limiter := New(client, "slow", 30*time.Second)
	l := adhoc(t, time.Hour, 1000, Cells)
	take := func(key string) Source {
		t.Helper()
		a, err := limiter.Take(t.Context(), []Take{takeOf(l, key, 1)})
		require.NoError(t, err)
		return a.Decisions[0].Source
	}
	take("well")
	limiter.timeout = after(time.Millisecond)
	for range 2 * failuresInARow {
		require.EqualValues(t, FromLocal, take("slow"), "the slow key was decided by")
	}
	limiter.timeout = after(30 * time.Second)
	require.EqualValues(t, FromRedis, take("well"), "another key was decided by")
	close(ended)
	limiter.Wait()
}

func after(d time.Duration) func() time.Duration { return func() time.Duration { return d } }
