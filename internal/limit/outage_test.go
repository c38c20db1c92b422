package limit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// Redis is killed, or stands still. Each fail mode does what it says meanwhile, and Redis decides again by
// itself when it is back. How long a decision took is printed; -v shows it.
func TestFailModesDecideWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]struct{ leave, back func(*stack.RedisServer) }{
		"killed": {func(s *stack.RedisServer) { s.Kill() }, func(s *stack.RedisServer) { s.Start() }},
		"paused": {func(s *stack.RedisServer) { s.Pause() }, func(s *stack.RedisServer) { s.Resume() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := stack.Redis(t)
			for _, fail := range Fails {
				limiter := New(stack.ProgramClient(t, server.URL()), "away-"+string(fail), DefaultTimeout)
				l := &Limit{Window: time.Hour, Max: 5, Policy: Log, Fail: fail}
				redisDecides(t, limiter, l)
				away.leave(server)
				var took []time.Duration
				for i := range 40 {
					began := time.Now()
					a, err := limiter.Take(t.Context(), []Take{takeOf(l, "alice", 1)})
					took = append(took, time.Since(began))
					require.Equal(t, "", awayAnswer(fail, i, a, err))
					time.Sleep(5 * time.Millisecond) // so that Redis is tried again in between
				}
				slices.Sort(took)
				t.Logf("%s: a decision took %s (median), %s (most)", fail, took[len(took)/2].Round(time.Microsecond), took[len(took)-1].Round(time.Microsecond))
				away.back(server)
				redisDecides(t, limiter, l)
			}
		})
	}
}

// awayAnswer says what is wrong with the i-th answer without Redis, or nothing.
func awayAnswer(fail Fail, i int, a Answer, err error) string {
	var unavailable *UnavailableError
	switch {
	case fail == FailClosed:
		if !errors.As(err, &unavailable) {
			return "want an UnavailableError"
		}
	case err != nil:
		return "want an answer"
	case a.Decisions[0].Source != FromLocal || a.Decisions[0].Certain:
		return "want an uncertain decision from local"
	case a.Allowed != (fail == FailOpen || i < 5):
		return "want five to be allowed if the ring decides, and all if the limit is open"
	case !a.Allowed && a.Decisions[0].RetryAfter <= 0:
		return "want to know when to try again"
	}
	return ""
}

// redisDecides waits until Redis decides, and counts nothing.
func redisDecides(t *testing.T, limiter *Limiter, l *Limit) {
	t.Helper()
	stack.Eventually(t, "Redis to decide", func() (bool, string) {
		a, err := limiter.Look(t.Context(), []Take{takeOf(l, "bob", 1)})
		return err == nil && a.Decisions[0].Source == FromRedis, fmt.Sprintf("%+v, %v", a, err)
	})
}

// A closed limit among others refuses all, and an open one does not loosen a local one.
func TestClosedLimitAmongOthersRefusesAll(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, "modes")
	limits := map[Fail]*Limit{}
	for i, fail := range Fails {
		limits[fail] = &Limit{Window: time.Duration(i+1) * time.Minute, Max: 2, Policy: Stream, Fail: fail}
	}
	limits[FailOpen].Max = 100
	local, open, closed := takeOf(limits[FailLocal], "alice", 2), takeOf(limits[FailOpen], "alice", 2), takeOf(limits[FailClosed], "alice", 2)
	_, err := w.limiter.Take(t.Context(), []Take{local, closed, open})
	var unavailable *UnavailableError
	if !errors.As(err, &unavailable) || unavailable.Limit != limits[FailClosed] {
		t.Errorf("one is closed: %v", err)
	}
	if a := w.take(open, local); !a.Allowed { // the refused take above has counted nothing
		t.Errorf("%+v", a)
	}
	if a := w.take(open, local); a.Allowed || !a.Decisions[0].Allowed || a.Decisions[1].Allowed {
		t.Errorf("the local limit is used up: %+v", a)
	}
}

// cut keeps commands from Redis while it is on.
type cut struct {
	on    bool
	asked int // commands that came
}

func (c *cut) process(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
	if !c.on {
		return next(ctx, cmd)
	}
	c.asked++
	err := errors.New("the connection broke")
	cmd.SetErr(err)
	return err
}

// Redis is left alone after three failures, and then one take in 250 ms tries it.
func TestRedisIsLeftAloneAfterThreeFailures(t *testing.T) {
	t.Parallel()
	client := backends[2].start(t)
	var broken cut
	client.AddHook(hook(broken.process))
	w, l := newWorld(t, client, "alone"), adhoc(t, time.Hour, 1000, Cells)
	broken.on = true
	begin := w.clock
	for w.clock = begin; w.clock < begin+1000; w.clock += 10 {
		_, err := w.limiter.Take(t.Context(), []Take{takeOf(l, "alice", 1)})
		require.NoError(t, err)
	}
	if err := w.limiter.Reset(t.Context(), takeOf(l, "bob", 1)); awayAnswer(FailClosed, 0, Answer{}, err) != "" {
		t.Errorf("no fail mode decides about a reset: %v", err)
	}
	if want := failuresInARow + 3; broken.asked != want { // at 0, 10 and 20 ms; then at 270, 520 and 770 ms
		t.Errorf("Redis was asked %d times in a second, want %d", broken.asked, want)
	}
	broken.on = false
	w.clock = begin + 1020
	if d := w.take(takeOf(l, "alice", 1)).Decisions[0]; d.Remaining != 899 { // it is told of the hundred
		t.Errorf("when Redis is back: %+v", d)
	}
}

// Callers that are gone, or wait for a shorter time than Redis takes, say nothing about Redis: neither do they get a decision
// of the fail mode, nor is Redis left alone because of them.
func TestCallersThatDoNotWaitChangeNothing(t *testing.T) {
	t.Parallel()
	server := stack.Redis(t)
	limiter := New(stack.ProgramClient(t, server.URL()), "gone", time.Minute)
	l := &Limit{Window: time.Hour, Max: 1000, Policy: Cells, Fail: FailClosed}
	redisDecides(t, limiter, l)
	server.Pause()
	for i := range 20 {
		want := map[bool]error{true: context.Canceled, false: context.DeadlineExceeded}[i < failuresInARow+1]
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if want == context.Canceled {
			cancel()
		}
		_, err := limiter.Take(ctx, []Take{takeOf(l, "alice", 1)})
		cancel()
		require.ErrorIs(t, err, want, "take %d", i)
	}
	server.Resume()
	a, err := limiter.Take(t.Context(), []Take{takeOf(l, "bob", 1)})
	require.NoError(t, err)
	require.Equal(t, FromRedis, a.Decisions[0].Source)
}
