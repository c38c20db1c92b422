package limit

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// A refusal that this process remembers refuses no hits that have happened: another process may have reset
// the key, or given back.
func TestMemoryRefusesNothingThatHasHappened(t *testing.T) {
	t.Parallel()
	client := stack.Redis(t).Client()
	limiter, other := New(client, t.Name(), time.Minute), New(client, t.Name(), time.Minute)
	t.Cleanup(func() { limiter.Wait(); other.Wait() })
	now := time.Now()
	limiter.now = func() time.Time { return now } // a refusal is remembered for a second
	l := &Limit{Name: "bytes", Window: time.Minute, Max: 5, Policy: Log, Fail: FailLocal, Mode: Enforce}
	take := Take{Limit: l, Caller: "alice", Key: "alice", N: 5}
	for _, want := range []bool{true, false} {
		a, err := limiter.Take(t.Context(), []Take{take})
		require.NoError(t, err)
		require.Equal(t, want, a.Allowed)
	}
	require.NoError(t, other.Reset(t.Context(), take))
	a, err := limiter.Take(t.Context(), []Take{take})
	require.NoError(t, err)
	require.Equal(t, SourceMemory, a.Decisions[0].Source)
	take.Happened = true
	a, err = limiter.Take(t.Context(), []Take{take})
	require.NoError(t, err)
	require.True(t, a.Allowed)
}

// settlers are processes that share a Redis whose clock is the test's.
type settlers struct {
	t         *testing.T
	client    redis.UniversalClient
	now       int64
	processes []*boundProcess
}

func newSettlers(t *testing.T, client *redis.Client, processes int) *settlers {
	s := &settlers{t: t, client: client}
	for range processes {
		p := &boundProcess{trouble: &trouble{now: func() int64 { return s.now }}}
		own := redis.NewClient(client.Options())
		own.AddHook(p.trouble)
		p.limiter = New(own, t.Name(), time.Minute)
		p.limiter.store.scripts = heldScripts
		p.limiter.now = func() time.Time { return time.UnixMilli(s.now) }
		s.processes = append(s.processes, p)
		t.Cleanup(func() { p.limiter.Wait(); _ = own.Close() })
	}
	s.at(0)
	return s
}

func (s *settlers) at(seconds int64) {
	s.t.Helper()
	s.now = worldStart + 1000*seconds
	require.NoError(s.t, setClock(s.t.Context(), s.client, hashTag("alice"), s.now).Err())
}

// away says whether a process can reach Redis.
func (s *settlers) away(process int, is bool) {
	p := s.processes[process]
	if is {
		p.trouble.next("away")
		return
	}
	p.trouble.next("")
	p.trouble.heal()
	p.limiter.fallback.breaker.succeeded()
}

// ask has a process take or settle, and returns what came of it.
func (s *settlers) ask(process int, l *Limit, action, id string, n int64) string {
	s.t.Helper()
	take := takeOf(l, "alice", n)
	take.ID = id
	limiter := s.processes[process].limiter
	limiter.refusals.forget(limiter.key(&take))
	a, err := askSettling(s.t, limiter, action, take)
	if _, unavailable := errors.AsType[*UnavailableError](err); unavailable {
		return "unavailable"
	}
	if err != nil {
		return outcomeText(a, err)
	}
	return fmt.Sprintf("%s, by %s", outcomeText(a, nil), a.Decisions[0].Source)
}

// TestSettlementsElsewhereLowerTheAccount: without Redis, a process refuses no hits that were settled, given
// back or reset through another one, as soon as Redis has answered it once since.
func TestSettlementsElsewhereLowerTheAccount(t *testing.T) {
	t.Parallel()
	s := newSettlers(t, stack.Redis(t, stack.RedisArgs("--appendonly", "no")).Client(), 2)
	for _, policy := range []Policy{Cells, Log} {
		l := &Limit{Name: "tokens", Window: 7 * 24 * time.Hour, Max: 200_000, Policy: policy, Fail: FailLocal}
		most := int64(4000)
		if policy == Log {
			l.Max, most = 10_000, 500
		}
		for i := range 60 {
			id := fmt.Sprint(policy, i)
			require.Contains(t, s.ask(0, l, "take", id, most), "allowed true")
			require.Contains(t, s.ask(1, l, "settle", id, most/5), "settled")
		}
		used := 60 * most / 5
		s.ask(0, l, "take", "", 0)
		s.away(0, true)
		require.Equal(t, fmt.Sprintf("allowed true, remaining %d, not settled, by local", l.Max-used-1), s.ask(0, l, "take", "", 1))
		s.away(0, false)
		s.ask(0, l, "take", "", 0)
		require.NoError(t, s.processes[1].limiter.Reset(t.Context(), takeOf(l, "alice", 0)))
		s.ask(0, l, "take", "", 1)
		s.away(0, true)
		require.Equal(t, fmt.Sprintf("allowed true, remaining %d, not settled, by local", l.Max-2), s.ask(0, l, "take", "", 1))
		s.away(0, false)
		s.ask(0, l, "take", "", 0)
	}
}

// TestARepeatedTakeIsInTheAccount: a client goes away while Redis is late, and repeats its take. Then Redis
// is away, and the process allows no more than max.
func TestARepeatedTakeIsInTheAccount(t *testing.T) {
	t.Parallel()
	for i, late := range []string{"late", "later"} {
		s := newSettlers(t, stack.Redis(t, stack.RedisArgs("--appendonly", "no")).Client(), 2)
		l := &Limit{Name: "tokens", Window: time.Hour, Max: 100, Policy: rolling()[i], Fail: FailLocal}
		p := s.processes[0]
		take := takeOf(l, "alice", 100)
		take.ID = "a"
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		p.trouble.next(late)
		_, err := p.limiter.Take(ctx, []Take{take})
		require.Error(t, err)
		p.trouble.next("")
		p.heal()
		for process := range 2 {
			require.Equal(t, "allowed true, remaining 0, not settled, by redis", s.ask(process, l, "take", "a", 100))
			s.away(process, true)
			require.Equal(t, "allowed false, remaining 0, not settled, by local", s.ask(process, l, "take", "", 1))
		}
	}
}

// TestSettlementsWithoutRedis: they are refused unless the limit is open, and the take stays as it was.
func TestSettlementsWithoutRedis(t *testing.T) {
	t.Parallel()
	s := newSettlers(t, stack.Redis(t, stack.RedisArgs("--appendonly", "no")).Client(), 1)
	for _, fail := range Fails {
		l := &Limit{Name: string(fail), Window: time.Hour, Max: 10, Policy: Cells, Fail: fail}
		require.Equal(t, "allowed true, remaining 6, not settled, by redis", s.ask(0, l, "take", "a", 4))
		s.away(0, true)
		want := "unavailable"
		if fail == FailOpen {
			want = "allowed true, remaining 10, not settled, by local"
		}
		require.Equal(t, want, s.ask(0, l, "settle", "a", 1))
		if fail == FailLocal {
			require.Equal(t, "allowed true, remaining 3, not settled, by local", s.ask(0, l, "take", "b", 3))
		}
		s.away(0, false)
		require.Contains(t, s.ask(0, l, "settle", "a", 1), "settled 1, over 0")
		require.Equal(t, "unknown", s.ask(0, l, "settle", "b", 1), "it was decided without Redis")
	}
}

// TestAKeyThatWasResetIsNotSettled: what was taken before a reset, or before a clock went back by more than a
// window, takes nothing of what was taken since.
func TestAKeyThatWasResetIsNotSettled(t *testing.T) {
	t.Parallel()
	s := newSettlers(t, stack.Redis(t, stack.RedisArgs("--appendonly", "no")).Client(), 1)
	for _, policy := range []Policy{Cells, Log} {
		l := &Limit{Name: "tokens", Window: time.Minute, Max: 10, Policy: policy, Fail: FailClosed}
		s.at(10_000)
		s.ask(0, l, "take", "a", 4)
		require.NoError(t, s.processes[0].limiter.Reset(t.Context(), takeOf(l, "alice", 0)))
		s.now++
		require.NoError(t, setClock(t.Context(), s.client, hashTag("alice"), s.now).Err())
		s.ask(0, l, "take", "b", 4)
		require.Equal(t, "allowed true, remaining 6, settled 0, over 0, by redis", s.ask(0, l, "settle", "a", 0))
		require.Equal(t, "allowed true, remaining 3, settled 3, over 0, by redis", s.ask(0, l, "settle", "a", 3), "more has happened, and counts")
		require.Equal(t, "allowed true, remaining 6, settled 0, over 0, by redis", s.ask(0, l, "settle", "a", 0))
		require.Equal(t, "allowed true, remaining 10, settled 0, over 0, by redis", s.ask(0, l, "settle", "b", 0))
		s.ask(0, l, "take", "e", 4)
		require.Contains(t, s.ask(0, l, "settle", "e", 40), "remaining 0, settled 40, over 30")
		require.NoError(t, s.processes[0].limiter.Reset(t.Context(), takeOf(l, "alice", 0)))
		require.Equal(t, "allowed true, remaining 10, settled 40, over 0, by redis", s.ask(0, l, "settle", "e", 40))
		require.Equal(t, "allowed true, remaining 9, settled 41, over 0, by redis", s.ask(0, l, "settle", "e", 41), "one more has happened")
		require.NoError(t, s.processes[0].limiter.Reset(t.Context(), takeOf(l, "alice", 0)))
		s.ask(0, l, "take", "c", 4)
		s.at(9900)
		s.ask(0, l, "take", "d", 4)
		s.at(9959)
		require.Equal(t, "allowed true, remaining 6, settled 0, over 0, by redis", s.ask(0, l, "settle", "c", 0), "the clock was set back")
	}
}

// TestASettlementOfWhichNothingIsKeptIsRepeated: a key of log that is full since a reset keeps nothing of a
// take from before it. A reset after the settlement takes that along.
func TestASettlementOfWhichNothingIsKeptIsRepeated(t *testing.T) {
	t.Parallel()
	s := newSettlers(t, stack.Redis(t, stack.RedisArgs("--appendonly", "no")).Client(), 1)
	l := &Limit{Name: "tokens", Window: time.Minute, Max: 10, Policy: Log, Fail: FailClosed}
	half := *l
	half.Max = 5 // so that takes alone fill the key
	s.at(10_000)
	s.ask(0, l, "take", "a", 4)
	reset := func() {
		require.NoError(t, s.processes[0].limiter.Reset(t.Context(), takeOf(l, "alice", 0)))
		s.now++
		require.NoError(t, setClock(t.Context(), s.client, hashTag("alice"), s.now).Err())
	}
	reset()
	s.ask(0, l, "take", "", 10)
	for range 3 {
		require.Equal(t, "allowed true, remaining 0, settled 6, over 7, by redis", s.ask(0, &half, "settle", "a", 6))
	}
	reset()
	require.Equal(t, "allowed true, remaining 10, settled 6, over 0, by redis", s.ask(0, l, "settle", "a", 6))
	require.Equal(t, "allowed true, remaining 9, settled 7, over 0, by redis", s.ask(0, l, "settle", "a", 7))

	// A key without hits, of a limit that allows none now, is not made.
	never, take := *l, takeOf(l, "alice", 0)
	never.Max = 0
	reset()
	s.ask(0, &never, "settle", "a", 9)
	require.Zero(t, s.client.Exists(t.Context(), s.processes[0].limiter.key(&take)).Val())
}

// TestTakesFromBeforeMaxBecameZeroAreSettled: the file of limits can change while a request runs.
func TestTakesFromBeforeMaxBecameZeroAreSettled(t *testing.T) {
	t.Parallel()
	s := newSettlers(t, stack.Redis(t, stack.RedisArgs("--appendonly", "no")).Client(), 1)
	for _, policy := range []Policy{Cells, Log} {
		l := &Limit{Name: "tokens", Window: time.Minute, Max: 10, Policy: policy, Fail: FailClosed}
		never := *l
		never.Max = 0
		s.ask(0, l, "take", "a", 4)
		require.Equal(t, "allowed true, remaining 0, settled 3, over 3, by redis", s.ask(0, &never, "settle", "a", 3))
		require.Equal(t, "allowed true, remaining 7, settled 3, over 0, by redis", s.ask(0, l, "settle", "a", 3))
		require.Equal(t, "unknown", s.ask(0, &never, "settle", "b", 3))
	}
}

// TestAGiveBackInStepsContinues: an interrupted one is continued by its repetition, until all is given back.
func TestAGiveBackInStepsContinues(t *testing.T) {
	t.Parallel()
	s := newSettlers(t, stack.Redis(t, stack.RedisArgs("--appendonly", "no")).Client(), 1)
	for _, policy := range []Policy{Log, Stream} {
		l := &Limit{Name: "tokens", Window: time.Hour, Max: 100, Policy: policy, Fail: FailClosed}
		for range 40 {
			s.ask(0, l, "take", "", 2)
		}
		limiter, scripts := s.processes[0].limiter, 0
		stop := hook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			if scripts++; scripts == 4 {
				cmd.SetErr(errors.New("the connection broke"))
				return cmd.Err()
			}
			return next(ctx, cmd)
		})
		limiter.store.client.AddHook(stop)
		require.Equal(t, "unavailable", s.ask(0, l, "take", "give", -70))
		require.Equal(t, "allowed true, remaining 90, not settled, by redis", s.ask(0, l, "take", "give", -70))
		require.Equal(t, "allowed true, remaining 90, not settled, by redis", s.ask(0, l, "take", "give", -70))
		require.Equal(t, "not settled", s.ask(0, l, "settle", "give", 1)[:11])
	}
}

// TestSettlementsOfSeveralLimits: all or none are taken and settled. On a cluster, the error names those that
// were settled before.
func TestSettlementsOfSeveralLimits(t *testing.T) {
	t.Parallel()
	for name, client := range map[string]redis.UniversalClient{
		"server": stack.ProgramClient(t, stack.Redis(t).URL()), "cluster": stack.ProgramClient(t, stack.Cluster(t, 0).URL()),
	} {
		t.Run(name, func(t *testing.T) {
			l := New(client, "several", stack.Hung)
			takes := func(id string, ns ...int64) (out []Take) {
				for i, n := range ns {
					limit := &Limit{Name: fmt.Sprint("l", i), Window: time.Hour, Max: 10, Policy: []Policy{Cells, Log, Cells}[i], Fail: FailClosed}
					out = append(out, Take{Limit: limit, Caller: fmt.Sprint("k", i), Key: fmt.Sprint("k", i), N: n, ID: id})
				}
				return out
			}
			remaining := func() (out []int64) {
				for _, take := range takes("", 0, 0, 0) {
					a, err := l.Look(t.Context(), []Take{take})
					require.NoError(t, err)
					out = append(out, a.Decisions[0].Remaining)
				}
				return out
			}
			take := func(allowed bool, id string, ns ...int64) {
				t.Helper()
				a, err := l.Take(t.Context(), takes(id, ns...))
				require.NoError(t, err)
				require.Equal(t, allowed, a.Allowed)
			}
			take(true, "one", 4, 5, 6)
			take(false, "two", 4, 5, 5) // the last does not fit
			require.Equal(t, []int64{6, 5, 4}, remaining())
			take(true, "two", 1, 1, 1) // a refused take has left no trace
			_, err := l.Take(t.Context(), takes("two", 1, 1, 2))
			require.ErrorAs(t, err, new(*IDError))
			require.Equal(t, []int64{5, 4, 3}, remaining())
			a, err := l.Settle(t.Context(), takes("one", 1, 2, 3))
			require.NoError(t, err)
			require.Equal(t, []int64{8, 7, 6}, []int64{a.Decisions[0].Remaining, a.Decisions[1].Remaining, a.Decisions[2].Remaining})

			others := takes("two", 0, 0, 0)
			others[2].ID = "three" // which is unknown
			_, err = l.Settle(t.Context(), others)
			var bad *IDError
			require.ErrorAs(t, err, &bad)
			require.Equal(t, IDUnknown, bad.Reason)
			if name == "server" {
				require.Equal(t, []int64{8, 7, 6}, remaining())
				return
			}
			require.Equal(t, []int64{9, 8, 6}, remaining())
			require.Contains(t, bad.Error(), "settled on other nodes before: l0, l1")
			_, err = l.Settle(t.Context(), takes("two", 0, 0, 0))
			require.NoError(t, err)
			require.Equal(t, []int64{9, 8, 7}, remaining())
		})
	}
}

// TestTakesWaitWhileTheirSlotMoves: no script runs while a slot of a cluster moves, because a take's keys
// would be on two nodes. The take waits, and counts once.
func TestTakesWaitWhileTheirSlotMoves(t *testing.T) {
	t.Parallel()
	cluster := stack.Cluster(t, 0)
	l := New(stack.ProgramClient(t, cluster.URL()), "moves", stack.Hung)
	named := &Limit{Name: "tokens", Window: time.Hour, Max: 10, Policy: Log, Fail: FailClosed}
	take := takeOf(named, "alice", 4)
	take.ID = "a"
	a, err := l.Take(t.Context(), []Take{take})
	require.NoError(t, err)
	require.True(t, a.Allowed)
	key := l.key(&take)
	move := cluster.MoveSlot(key, cluster.Other(key))
	answered := make(chan error, 2)
	for i := range 2 {
		go func() {
			own := takeOf(named, "alice", 1)
			own.ID = fmt.Sprint(i)
			_, err := l.Take(t.Context(), []Take{own})
			answered <- err
		}()
	}
	short := New(stack.ProgramClient(t, cluster.URL()), "moves", 100*time.Millisecond)
	own := takeOf(named, "alice", 1)
	own.ID = "short"
	_, err = short.Take(t.Context(), []Take{own})
	require.ErrorAs(t, err, new(*UnavailableError)) // it waits no longer
	require.Empty(t, answered)
	move.Finish()
	for range 2 {
		require.NoError(t, <-answered)
	}
	take.N = 3
	a, err = l.Settle(t.Context(), []Take{take})
	require.NoError(t, err)
	require.EqualValues(t, 10-2-3, a.Decisions[0].Remaining)
}

// TestFullRedisHoldsNoMore: whatever the script, Redis grows no further once it is full, and nothing is half
// done. Give-backs without an id continue.
func TestFullRedisHoldsNoMore(t *testing.T) {
	t.Parallel()
	server := stack.Redis(t, stack.RedisArgs("--appendonly", "no"))
	client := server.Client()
	l := New(stack.ProgramClient(t, server.URL()), "full", stack.Hung)
	for _, policy := range NamedPolicies() {
		named := &Limit{Name: "full", Window: time.Hour, Max: 100, Policy: policy, Fail: FailClosed}
		take := func(n int64, id string) Take {
			out := takeOf(named, "alice", n)
			if out.ID = id; policy == Concurrent {
				out.N, out.ID, out.Lease = 1, "", id
			}
			return out
		}
		mustTake(t, l, take(50, "a"))
		require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", "1").Err())
		keys := client.DBSize(t.Context()).Val()
		key := l.key(&Take{Limit: named, Caller: "alice", Key: "alice"})
		before := client.Dump(t.Context(), key).Val()
		for id, n := range map[string]int64{"b": 1, "c": -1, "d": 0} {
			if policy == Concurrent {
				n = 1
			}
			_, err := l.Take(t.Context(), []Take{take(n, id)})
			require.ErrorIs(t, err, ErrFull, "%s, %d", policy, n)
		}
		if policy != Concurrent && policy != Stream {
			for _, n := range []int64{1, 60, 1000} {
				_, err := l.Settle(t.Context(), []Take{take(n, "a")})
				require.ErrorIs(t, err, ErrFull, "%s, %d", policy, n)
			}
		}
		require.Equal(t, keys, client.DBSize(t.Context()).Val(), policy)
		require.Equal(t, before, client.Dump(t.Context(), key).Val(), policy)
		if policy != Concurrent {
			require.EqualValues(t, 60, mustTake(t, l, take(-10, "")).Decisions[0].Remaining)
		}
		require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", "0").Err())
	}

	// However often it is settled, a key of log holds at most twice max.
	named := &Limit{Name: "held", Window: time.Hour, Max: 100, Policy: Log, Fail: FailClosed}
	for i := range 20 {
		take := takeOf(named, "alice", 1)
		take.ID = fmt.Sprint(i)
		if !mustTake(t, l, take).Allowed {
			continue
		}
		take.N = 1000
		a, err := l.Settle(t.Context(), []Take{take})
		require.NoError(t, err)
		require.EqualValues(t, 900, a.Decisions[0].Over)
	}
	require.EqualValues(t, 200, client.ZCount(t.Context(), l.key(&Take{Limit: named, Caller: "alice", Key: "alice"}), "0", "+inf").Val())
	both := []Take{takeOf(named, "alice", 600), takeOf(&Limit{Name: "other", Window: time.Hour, Max: 100, Policy: Log}, "alice", 401)}
	both[0].ID, both[1].ID = "0", "0"
	_, err := l.Settle(t.Context(), both)
	require.ErrorContains(t, err, "1001 hits of the policy log at once")
}
