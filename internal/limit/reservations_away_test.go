package limit

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// reservers are processes that share a Redis whose clock is the test's.
type reservers struct {
	t         *testing.T
	client    redis.UniversalClient
	now       int64
	processes []*boundProcess
}

func newReservers(t *testing.T, client *redis.Client, processes int) *reservers {
	r := &reservers{t: t, client: client}
	for range processes {
		p := &boundProcess{trouble: &trouble{now: func() int64 { return r.now }}}
		own := redis.NewClient(client.Options())
		own.AddHook(p.trouble)
		p.limiter = New(own, t.Name(), time.Minute)
		p.limiter.store.scripts = heldScripts
		p.limiter.now = func() time.Time { return time.UnixMilli(r.now) }
		r.processes = append(r.processes, p)
	}
	t.Cleanup(r.end)
	r.at(0)
	return r
}

// end closes the connections, of which a Redis has only so many.
func (r *reservers) end() {
	for _, p := range r.processes {
		p.limiter.Wait()
		_ = p.limiter.store.client.Close()
	}
	r.processes = nil
}

func (r *reservers) at(seconds int64) {
	r.t.Helper()
	r.now = worldStart + 1000*seconds
	require.NoError(r.t, setClock(r.t.Context(), r.client, hashTag("alice"), r.now).Err())
}

// away says whether a process can reach Redis.
func (r *reservers) away(process int, is bool) {
	p := r.processes[process]
	if is {
		p.trouble.next("away")
		return
	}
	p.trouble.next("")
	p.trouble.heal()
	p.limiter.fallback.breaker.succeeded()
}

// ask has a process do something, and returns what came of it.
func (r *reservers) ask(process int, l *Limit, action, id string, n int64) string {
	r.t.Helper()
	take := Take{Limit: l, Caller: "alice", Key: "alice", ID: id, N: n}
	if action == "reserve" || action == "renew" {
		take.Reserve = time.Minute
	}
	limiter := r.processes[process].limiter
	limiter.refusals.forget(limiter.key(&take))
	a, s, err := askReservation(r.t, limiter, action, take)
	var unavailable *UnavailableError
	switch {
	case errors.As(err, &unavailable):
		return "unavailable"
	case err != nil:
		return outcomeText(a, s, err)
	case s != nil:
		return fmt.Sprintf("done with %d, remaining %d, by %s", s[0].Settled, s[0].Remaining, s[0].Source)
	}
	return fmt.Sprintf("allowed %t, remaining %d, by %s", a.Allowed, a.Decisions[0].Remaining, a.Decisions[0].Source)
}

// TestReservationsWithoutRedis: under the fail mode local, a process holds what it reserves by itself, with
// what Redis has, and never allows more than max.
func TestReservationsWithoutRedis(t *testing.T) {
	t.Parallel()
	r := newReservers(t, stack.Redis(t, stack.RedisArgs("--appendonly", "no")).Client(), 2)
	l := &Limit{Name: "tokens", Window: time.Hour, Max: 10, Policy: Log, Fail: FailLocal}
	expect := func(want string, process int, action, id string, n int64) {
		t.Helper()
		require.Equal(t, want, r.ask(process, l, action, id, n), "%s %s %d", action, id, n)
	}
	expect("allowed true, remaining 8, by redis", 0, "reserve", "in Redis", 2)
	r.away(0, true)
	expect("allowed true, remaining 4, by local", 0, "reserve", "a", 4)
	expect("allowed true, remaining 4, by local", 0, "reserve", "a", 4) // again
	expect("allowed false, remaining 4, by local", 0, "take", "", 5)
	expect("allowed true, remaining 1, by local", 0, "reserve", "b", 3)
	expect("done with 1, remaining 3, by local", 0, "settle", "b", 1)
	expect("unavailable", 0, "settle", "b", 1) // Redis alone has what was settled
	expect("unavailable", 0, "settle", "in Redis", 1)
	expect("unavailable", 0, "renew", "in Redis", 0)
	r.at(50)
	expect("done with 0, remaining 3, by local", 0, "renew", "a", 0)
	r.at(100)

	// Redis answers again: it gets the hit of b, and this process counts a in addition to what Redis has.
	r.away(0, false)
	expect("allowed false, remaining 3, by redis", 0, "take", "", 4)
	expect("allowed true, remaining 2, by redis", 0, "take", "", 1)
	expect("done with 0, remaining 2, by local", 0, "renew", "a", 0) // Redis lacks it
	expect("done with 3, remaining 3, by redis", 0, "settle", "a", 3)
	expect("done with 3, remaining 3, by redis", 1, "settle", "a", 3)
	expect("settled with 3", 1, "settle", "a", 4)
	expect("ended", 0, "settle", "in Redis", 1) // and its 2 hits count
	expect("unknown", 0, "settle", "c", 1)

	// A process that is away remembers what Redis had given it.
	expect("allowed true, remaining 0, by redis", 0, "reserve", "d", 3)
	r.away(0, true)
	expect("allowed false, remaining 0, by local", 0, "take", "", 1)
	r.away(0, false)
	expect("done with 0, remaining 3, by redis", 1, "settle", "d", 0)
}

// TestReservationsUnderOtherFailModes: open reserves nothing, closed refuses.
func TestReservationsUnderOtherFailModes(t *testing.T) {
	t.Parallel()
	r := newReservers(t, stack.Redis(t, stack.RedisArgs("--appendonly", "no")).Client(), 1)
	open := &Limit{Name: "open", Window: time.Hour, Max: 10, Policy: Cells, Fail: FailOpen}
	closed := &Limit{Name: "closed", Window: time.Hour, Max: 10, Policy: Cells, Fail: FailClosed}
	r.away(0, true)
	require.Equal(t, "allowed true, remaining 6, by local", r.ask(0, open, "reserve", "a", 4))
	require.Equal(t, "unavailable", r.ask(0, open, "settle", "a", 4))
	require.Equal(t, "unavailable", r.ask(0, closed, "reserve", "a", 4))
	r.away(0, false)
	require.Equal(t, "unknown", r.ask(0, open, "settle", "a", 4))
	require.Equal(t, "allowed true, remaining 6, by redis", r.ask(0, closed, "reserve", "a", 4))
}

// TestManyReservationsThatEndedAreRemovedInSteps: they count until they are removed, a step per decision, and
// nothing is left of them.
func TestManyReservationsThatEndedAreRemovedInSteps(t *testing.T) {
	t.Parallel()
	client := stack.Redis(t, stack.RedisArgs("--appendonly", "no")).Client()
	r := newReservers(t, client, 1)
	l := &Limit{Name: "tokens", Window: time.Hour, Max: 10, Policy: Stream, Fail: FailClosed, OnExpiry: ExpiryReleases}
	for i := range 10 {
		require.Contains(t, r.ask(0, l, "reserve", fmt.Sprint(i), 1), "allowed true")
	}
	r.at(60)
	for _, want := range []string{"remaining 3", "remaining 6", "remaining 9", "remaining 10"} {
		require.Contains(t, r.ask(0, l, "take", "", 0), want)
	}
	key := r.processes[0].limiter.key(&Take{Limit: l, Caller: "alice", Key: "alice"})
	require.EqualValues(t, 0, client.Exists(t.Context(), reservedKey(key)).Val())
}

// TestAnIDReservesAgainAfterItIsForgotten: what has ended under the same id takes nothing of the new one
// along.
func TestAnIDReservesAgainAfterItIsForgotten(t *testing.T) {
	t.Parallel()
	r := newReservers(t, stack.Redis(t, stack.RedisArgs("--appendonly", "no")).Client(), 1)
	l := &Limit{Name: "tokens", Window: 20 * time.Minute, Max: 10, Policy: Cells, Fail: FailClosed}
	r.ask(0, l, "reserve", "a", 2) // which counts until 1260 s, and is forgotten at 1860 s
	r.at(1200)
	r.ask(0, l, "reserve", "b", 3)
	r.at(1900)
	require.Equal(t, "allowed true, remaining 5, by redis", r.ask(0, l, "reserve", "a", 2))
	require.Equal(t, "allowed true, remaining 5, by redis", r.ask(0, l, "take", "", 0))
	require.Equal(t, "done with 1, remaining 6, by redis", r.ask(0, l, "settle", "a", 1))
}

// TestResetRemovesReservations: afterwards they cannot be renewed, and what was used is still counted.
func TestResetRemovesReservations(t *testing.T) {
	t.Parallel()
	r := newReservers(t, stack.Redis(t, stack.RedisArgs("--appendonly", "no")).Client(), 1)
	l := &Limit{Name: "tokens", Window: time.Hour, Max: 10, Policy: Cells, Fail: FailLocal}
	r.ask(0, l, "reserve", "a", 4)
	require.NoError(t, r.processes[0].limiter.Reset(t.Context(), Take{Limit: l, Caller: "alice", Key: "alice"}))
	require.Equal(t, "allowed true, remaining 10, by redis", r.ask(0, l, "take", "", 0))
	require.Equal(t, "unknown", r.ask(0, l, "renew", "a", 0))
	require.Equal(t, "unknown", r.ask(0, l, "renew", "a", 0), "it is there again")
	require.Equal(t, "done with 3, remaining 7, by redis", r.ask(0, l, "settle", "a", 3))

	// Of several, none is renewed then.
	other := *l
	other.Name = "other"
	r.ask(0, l, "reserve", "b", 4)
	r.ask(0, &other, "reserve", "b", 4)
	both := []Take{{Limit: l, Caller: "alice", Key: "alice", ID: "b", Reserve: time.Hour}, {Limit: &other, Caller: "alice", Key: "alice", ID: "b", Reserve: time.Hour}}
	require.NoError(t, r.processes[0].limiter.Reset(t.Context(), both[1]))
	_, err := r.processes[0].limiter.RenewReservations(t.Context(), both)
	require.ErrorAs(t, err, new(*ReservationError))
	r.at(60)
	require.Equal(t, "ended", r.ask(0, l, "settle", "b", 1))
}

// TestReservationsOfSeveralLimits: all or none are reserved and settled, on a cluster in turn.
func TestReservationsOfSeveralLimits(t *testing.T) {
	t.Parallel()
	for name, client := range map[string]redis.UniversalClient{
		"server": stack.ProgramClient(t, stack.Redis(t).URL()), "cluster": stack.ProgramClient(t, stack.Cluster(t, 0).URL()),
	} {
		t.Run(name, func(t *testing.T) {
			l := New(client, "several", stack.Hung)
			takes := func(id string, ns ...int64) (out []Take) {
				for i, n := range ns {
					limit := &Limit{Name: fmt.Sprint("l", i), Window: time.Hour, Max: 10, Policy: Policies[i%len(Policies)], Fail: FailClosed}
					out = append(out, Take{Limit: limit, Caller: fmt.Sprint("k", i), Key: fmt.Sprint("k", i), N: n, ID: id, Reserve: time.Minute})
				}
				return out
			}
			remaining := func() (out []int64) {
				for _, take := range takes("", 0, 0, 0) {
					take.Reserve = 0
					a, err := l.Look(t.Context(), []Take{take})
					require.NoError(t, err)
					out = append(out, a.Decisions[0].Remaining)
				}
				return out
			}
			a, err := l.Take(t.Context(), takes("one", 4, 5, 6))
			require.NoError(t, err)
			require.True(t, a.Allowed)
			a, err = l.Take(t.Context(), takes("two", 4, 5, 5)) // the last does not fit
			require.NoError(t, err)
			require.False(t, a.Allowed)
			require.Equal(t, []int64{6, 5, 4}, remaining())
			a, err = l.Take(t.Context(), takes("two", 1, 1, 1)) // a refused take has left no trace
			require.NoError(t, err)
			require.True(t, a.Allowed)
			_, err = l.Take(t.Context(), takes("two", 1, 1, 2))
			require.ErrorAs(t, err, new(*IDError))
			require.Equal(t, []int64{5, 4, 3}, remaining())
			done, err := l.Settle(t.Context(), takes("one", 1, 2, 3))
			require.NoError(t, err)
			require.Equal(t, []int64{8, 7, 6}, []int64{done[0].Remaining, done[1].Remaining, done[2].Remaining})
			_, err = l.Settle(t.Context(), takes("one", 1, 2, 4))
			require.ErrorAs(t, err, new(*ReservationError))
			require.Equal(t, []int64{8, 7, 6}, remaining())
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
	take := Take{Limit: named, Caller: "alice", Key: "alice", N: 4, ID: "a", Reserve: time.Minute}
	a, err := l.Take(t.Context(), []Take{take})
	require.NoError(t, err)
	require.True(t, a.Allowed)
	key := l.key(&take)
	move := cluster.MoveSlot(key, cluster.Other(key))
	answered := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := l.Take(t.Context(), []Take{takeOf(named, "alice", 1)})
			answered <- err
		}()
	}
	short := New(stack.ProgramClient(t, cluster.URL()), "moves", 100*time.Millisecond)
	_, err = short.Take(t.Context(), []Take{takeOf(named, "alice", 1)})
	require.ErrorAs(t, err, new(*UnavailableError)) // it waits no longer
	require.Empty(t, answered)
	move.Finish()
	for range 2 {
		require.NoError(t, <-answered)
	}
	done, err := l.Settle(t.Context(), []Take{take})
	require.NoError(t, err)
	require.EqualValues(t, 10-2-4, done[0].Remaining)
}
