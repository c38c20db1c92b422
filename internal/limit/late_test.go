package limit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// Redis stands still for longer than takes wait, and then does what they asked for. Their hits are counted, though the caller
// was refused, and once more if this process has allowed them: the limit refuses too much, never too little, and for a window.
func TestRedisAnswersLate(t *testing.T) {
	t.Parallel()
	const most, late = 100, 7
	for _, policy := range Policies {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			server := stack.Redis(t)
			limiter := New(stack.ProgramClient(t, server.URL()), "late", time.Minute)
			other := New(stack.ProgramClient(t, server.URL()), "late", time.Minute)
			for fail, knows := range map[Fail]int64{FailClosed: 0, FailLocal: late, FailOpen: 0} {
				l := &Limit{Name: string(fail), Window: time.Hour, Max: most, Policy: policy, Fail: fail}
				mustTake(t, limiter, takeOf(l, "alice", 1))
				server.Pause()
				limiter.timeout = after(50 * time.Millisecond)
				a, err := limiter.Take(t.Context(), []Take{takeOf(l, "alice", late)})
				var unavailable *UnavailableError
				if fail == FailClosed && !errors.As(err, &unavailable) || fail != FailClosed && (err != nil || !a.Allowed || a.Decisions[0].Source != FromLocal) {
					t.Errorf("%s: %+v, %v", fail, a, err)
				}
				limiter.timeout = after(time.Minute)
				server.Resume()
				stack.Eventually(t, "the late take to be counted", func() (bool, string) {
					d := mustTake(t, other, takeOf(l, "alice", 0)).Decisions[0]
					return d.Remaining == most-1-late, fmt.Sprintf("%s: %+v", fail, d)
				})
				if a := mustTake(t, limiter, takeOf(l, "alice", 1)); !a.Allowed || a.Decisions[0].Remaining != most-2-late-knows {
					t.Errorf("%s: afterwards %+v, want %d left", fail, a, most-2-late-knows)
				}
			}
		})
	}
}

// A give-back that was late is made. Who gives back again gives back twice.
func TestALateGiveBack(t *testing.T) {
	t.Parallel()
	server := stack.Redis(t)
	limiter := New(stack.ProgramClient(t, server.URL()), "late", time.Minute)
	for _, policy := range Policies {
		l := &Limit{Window: time.Hour, Max: 10, Policy: policy, Fail: FailClosed}
		mustTake(t, limiter, takeOf(l, "alice", 5))
		server.Pause()
		limiter.timeout = after(50 * time.Millisecond)
		_, err := limiter.Take(t.Context(), []Take{takeOf(l, "alice", -2)})
		var unavailable *UnavailableError
		if !errors.As(err, &unavailable) {
			t.Errorf("%s: %v", policy, err)
		}
		limiter.timeout = after(time.Minute)
		server.Resume()
		stack.Eventually(t, "the late give-back", func() (bool, string) {
			d := mustTake(t, limiter, takeOf(l, "alice", 0)).Decisions[0]
			return d.Remaining == 7, fmt.Sprintf("%s: %+v", policy, d)
		})
		if d := mustTake(t, limiter, takeOf(l, "alice", -2)).Decisions[0]; d.Remaining != 9 {
			t.Errorf("%s: %+v", policy, d)
		}
	}
}

// A take that has waited for a connection until it was too late is never sent.
func TestNotSentWhenLate(t *testing.T) {
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
	if !errors.As(err, &unavailable) {
		t.Error(err)
	}
	limiter.Wait() // though nothing has answered
	dials.Unlock()
	if n := stack.Scan(t, server.Client(), "*"); len(n) > 0 || len(sent.scripts()) != 1 {
		t.Errorf("Redis has %v", n)
	}
}

// A limit whose Redis is slow does not put others into their fail mode.
func TestASlowKey(t *testing.T) {
	t.Parallel()
	client := backends[2].start(t)
	slow := &slowKey{part: ":slow", ended: make(chan struct{})}
	client.AddHook(slow)
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
		if from := take("slow"); from != FromLocal {
			t.Fatalf("the slow key was decided by %s", from)
		}
	}
	limiter.timeout = after(30 * time.Second)
	if from := take("well"); from != FromRedis {
		t.Errorf("another key was decided by %s", from)
	}
	close(slow.ended)
	limiter.Wait()
}

// slowKey is a hook that holds up commands about keys with a part in their names, until it is ended.
type slowKey struct {
	part  string
	ended chan struct{}
}

func (*slowKey) DialHook(next redis.DialHook) redis.DialHook { return next }
func (s *slowKey) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		for _, arg := range cmd.Args() {
			if text, ok := arg.(string); ok && len(text) > len(s.part) && text[len(text)-len(s.part):] == s.part {
				select {
				case <-s.ended:
				case <-ctx.Done():
					cmd.SetErr(ctx.Err())
					return ctx.Err()
				}
			}
		}
		return next(ctx, cmd)
	}
}
func (*slowKey) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func after(d time.Duration) func() time.Duration { return func() time.Duration { return d } }
