package limit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/cases"
	"tallyroll/tests/stack"
)

// Redis is killed, or stands still. Each fail mode decides as promised meanwhile, and Redis decides again by
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
	case a.Decisions[0].Source != SourceLocal || a.Decisions[0].Certain:
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
		return err == nil && a.Decisions[0].Source == SourceRedis, fmt.Sprintf("%+v, %v", a, err)
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
	if d := w.take(takeOf(l, "alice", 1)).Decisions[0]; d.Remaining != 899 { // Redis has received the hundred
		t.Errorf("when Redis is back: %+v", d)
	}
}

// Callers that are gone, or wait for a shorter time than Redis takes, say nothing about Redis: neither do
// they get a decision of the fail mode, nor is Redis left alone because of them.
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
	require.Equal(t, SourceRedis, a.Decisions[0].Source)
}

// Redis is left alone if it fails. A key that alone is slow says nothing about the others.
func TestBreakerLeavesRedisAloneIfItFails(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(worldStart)
	cases.Check(t, "breaker", func(t *testing.T, _, given string) string {
		var b breaker
		for event := range strings.SplitSeq(given, ", ") {
			key, what, _ := strings.Cut(event, " ")
			switch what {
			case "is slow":
				b.failed(key, now)
			case "fails":
				b.failed(severalKeys, now)
			case "is late": // a trip
				b.failed("", now)
			case "answers":
				b.succeeded()
			}
		}
		b2, a := b.mayAsk("b", now), b.mayAsk("a", now)
		later := now.Add(openFor)
		require.True(t, b.mayAsk("a", later), "after a while, one may ask")
		require.Equal(t, a, b.mayAsk("a", later), "just one")
		return fmt.Sprintf("may ask about a: %t, about b: %t", a, b2)
	})
}

// Redis stands still for longer than takes wait, and then does what they asked for. Their hits are counted,
// though the caller was refused, and once more if this process has allowed them: the limit refuses too much,
// never too little, and for a window. A give-back that was late is made, too: who gives back again gives back
// twice.
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
	for _, policy := range Policies() {
		for fail, knows := range map[Fail]int64{FailClosed: 0, FailLocal: late, FailOpen: 0} {
			l := &Limit{Name: string(fail), Window: time.Hour, Max: most, Policy: policy, Fail: fail}
			mustTake(t, limiter, takeOf(l, "alice", 1))
			a, err := send(l, late, most-1-late)
			if fail == FailClosed {
				require.ErrorAs(t, err, &unavailable)
			} else if err != nil || !a.Allowed || a.Decisions[0].Source != SourceLocal {
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
		require.EqualValues(t, SourceLocal, take("slow"), "the slow key was decided by")
	}
	limiter.timeout = after(30 * time.Second)
	require.EqualValues(t, SourceRedis, take("well"), "another key was decided by")
	close(ended)
	limiter.Wait()
}

func after(d time.Duration) func() time.Duration { return func() time.Duration { return d } }

// A reply is lost with its connection, or the connection was gone before. What counts nothing, or counts once
// by its id, is asked again at once. A take without an id may have been counted, so its fail mode decides.
func TestOnlyWhatCountsOnceIsAskedAgainAfterALostConnection(t *testing.T) {
	t.Parallel()
	server := stack.Redis(t)
	for name, lose := range map[string]func(*stack.Balancer){"reply": (*stack.Balancer).CutReply, "request": (*stack.Balancer).Forget} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			balancer := stack.NewBalancer(t, server.Addr())
			limiter := New(stack.ProgramClient(t, "redis://"+balancer.Addr()+"/0"), "lost-"+name, stack.Hung)
			direct := New(server.Client(), "lost-"+name, stack.Hung)
			for _, policy := range []Policy{Cells, Log, Stream} {
				l := &Limit{Window: time.Hour, Max: 100, Policy: policy, Fail: FailClosed}
				take := takeOf(l, "alice", 1)
				requireCounted := func(want int64, after string) {
					t.Helper()
					a, err := direct.Look(t.Context(), []Take{take})
					require.NoError(t, err)
					require.Equal(t, want, a.Decisions[0].Upper, "%s after %s", policy, after)
				}
				redisDecides(t, limiter, l)
				lose(balancer)
				a, err := limiter.Look(t.Context(), []Take{take})
				require.NoError(t, err, policy)
				require.Equal(t, SourceRedis, a.Decisions[0].Source, policy)

				lose(balancer)
				take.ID = "a"
				a, err = limiter.Take(t.Context(), []Take{take})
				require.NoError(t, err, policy)
				require.True(t, a.Allowed && a.Decisions[0].Source == SourceRedis, "%+v", a)
				requireCounted(1, "a take with an id")

				lose(balancer)
				take.ID = ""
				_, err = limiter.Take(t.Context(), []Take{take})
				_, unavailable := errors.AsType[*UnavailableError](err)
				require.True(t, unavailable, "%s: %v", policy, err)
				counted := int64(1)
				if name == "reply" {
					counted++ // by Redis, which no one can know
				}
				requireCounted(counted, "a take without an id")
			}
			l := &Limit{Window: time.Hour, Max: 1, Policy: Concurrent, Fail: FailClosed}
			slot := takeOf(l, "alice", 1)
			slot.Lease = "a"
			_, err := limiter.Take(t.Context(), []Take{slot})
			require.NoError(t, err)
			lose(balancer)
			held, err := limiter.Renew(t.Context(), slot)
			require.NoError(t, err)
			require.True(t, held.Held && held.Source == SourceRedis, "%+v", held)
		})
	}
}

// A balancer or a fail-over left all connections of this process mute. Three decisions wait in vain at the
// most, and the breaker's next one gets a new connection: no other of the pool is tried.
func TestTheBreakerTriesANewConnection(t *testing.T) {
	t.Parallel()
	server := stack.Redis(t)
	balancer := stack.NewBalancer(t, server.Addr())
	client := stack.ProgramClient(t, "redis://"+balancer.Addr()+"/0").(*redis.Client)
	limiter := New(client, "mute", 3*time.Second) // for a new connection on a busy machine
	l := &Limit{Window: time.Hour, Max: 1000, Policy: Cells, Fail: FailClosed}
	var open []*redis.Conn
	for range client.Options().PoolSize {
		open = append(open, client.Conn())
		require.NoError(t, open[len(open)-1].Ping(t.Context()).Err())
	}
	for _, conn := range open {
		require.NoError(t, conn.Close())
	}
	redisDecides(t, limiter, l)
	balancer.Mute()
	failed := 0
	for range 50 {
		if _, err := limiter.Take(t.Context(), []Take{takeOf(l, "alice", 1)}); err != nil {
			failed++
		}
	}
	require.Positive(t, failed, "decisions without Redis")
	require.LessOrEqual(t, failed, failuresInARow, "decisions without Redis") // one, if the machine is not busy
}
