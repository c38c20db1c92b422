package limit

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/window/calendar"
	"tallyroll/tests/stack"
)

// turnState is what Redis must know of a key.
type turnState struct {
	turned bool
	hits   int64  // since the turn, if it has turned
	ids    string // each with a space around it
}

type turnTake struct {
	id          string
	n           int64
	call, reply time.Time
}

type turnAnswer struct {
	allowed, repeated bool
	remaining         int64
}

const turnMax = 100

// turnModel decides about a take before or after the turn, and about one that was under way in both ways.
func turnModel(turn time.Time) porcupine.Model {
	const clocks = 2 * time.Millisecond // Redis counts whole milliseconds
	return (&porcupine.NondeterministicModel{
		Init: func() []any { return []any{turnState{ids: " "}} },
		Step: func(state, input, output any) (after []any) {
			take, got := input.(turnTake), output.(turnAnswer)
			for _, turned := range []bool{false, true} {
				s := state.(turnState)
				if !turned && (s.turned || take.call.After(turn.Add(clocks))) ||
					turned && take.reply.Before(turn.Add(-clocks)) {
					continue
				}
				if turned && !s.turned {
					s.turned, s.hits = true, 0
				}
				want := turnAnswer{repeated: strings.Contains(s.ids, " "+take.id+" ")}
				if want.allowed = want.repeated || s.hits+take.n <= turnMax; want.allowed && !want.repeated {
					s.hits, s.ids = s.hits+take.n, s.ids+take.id+" "
				}
				if want.remaining = turnMax - s.hits; want == got {
					after = append(after, s)
				}
			}
			return after
		},
		Equal: func(a, b any) bool { return a == b },
	}).ToModel()
}

// TestTakesOverATurnAreLinearizable lets clients of two processes, whose clocks are three seconds apart, take
// and repeat takes around a midnight. There is an order of all takes that agrees with each answer, in which
// all before midnight come first and no hits of theirs count after it.
func TestTakesOverATurnAreLinearizable(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]string{"server": stack.Redis(t).URL(), "cluster": stack.Cluster(t, 0).URL()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := stack.ProgramClient(t, url)
			for before, after, round := 0, 0, 0; before == 0 || after == 0; round++ { // a slow machine needs another one
				before, after = takeOverATurn(t, client, fmt.Sprint("k", round))
			}
		})
	}
}

// takeOverATurn returns how many takes were decided before and after the turn.
func takeOverATurn(t *testing.T, client redis.UniversalClient, key string) (before, after int) {
	t.Helper()
	turn := time.Now().Add(2 * time.Second).Truncate(time.Second)
	toMidnight := (24*time.Hour - time.Duration(turn.Unix()%86400)*time.Second) % (24 * time.Hour)
	period, err := calendar.ParsePeriod(calendar.Today, "", time.FixedZone("", int(toMidnight.Seconds())))
	require.NoError(t, err)
	l := &Limit{Name: "day", Period: period, Window: period.Longest(), Max: turnMax, Fail: FailClosed}
	require.NoError(t, l.Check())
	var mu sync.Mutex
	var history []porcupine.Operation
	var clients sync.WaitGroup
	for i, ahead := range []time.Duration{-1500 * time.Millisecond, 1500 * time.Millisecond} {
		limiter := New(client, "turn", stack.Hung)
		limiter.now = func() time.Time { return time.Now().Add(ahead) }
		for j := range 4 {
			clients.Go(func() {
				random := rand.New(rand.NewPCG(uint64(i), uint64(j)))
				for k := 0; time.Since(turn) < time.Second; k++ {
					take := turnTake{id: fmt.Sprintf("%d-%d-%d", i, j, max(0, k-random.IntN(3))), n: 1 + int64(j), call: time.Now()}
					a, err := limiter.Take(t.Context(), []Take{{Limit: l, Caller: key, Key: key, N: take.n, ID: take.id}})
					take.reply = time.Now()
					if err != nil {
						t.Error(err)
						return
					}
					d := a.Decisions[0]
					mu.Lock()
					if take.reply.Before(turn) {
						before++
					} else if take.call.After(turn) {
						after++
					}
					if d.Source == SourceRedis {
						history = append(history, porcupine.Operation{ClientId: 4*i + j, Input: take, Call: take.call.UnixNano(),
							Output: turnAnswer{d.Allowed, d.Repeated, d.Remaining}, Return: take.reply.UnixNano()})
					}
					mu.Unlock()
					time.Sleep(20 * time.Millisecond) // a pace: Porcupine's time grows fast with the takes
				}
			})
		}
	}
	clients.Wait()
	require.Equal(t, porcupine.Ok, porcupine.CheckOperationsTimeout(turnModel(turn), history, stack.Hung), "%d takes", len(history))
	return before, after
}

// TestAPeriodOutlivesAFailOver promotes a replica whose clock is three seconds behind, just after a turn: the
// period that has begun does not begin again, and its max holds until its end by the new clock.
func TestAPeriodOutlivesAFailOver(t *testing.T) {
	t.Parallel()
	for refused := 0; refused == 0; { // on a slow machine, the period may be over before the first take
		refused = takeOverAFailOver(t)
	}
}

// takeOverAFailOver returns how many takes the new master refused before it allowed one.
func takeOverAFailOver(t *testing.T) (refused int) {
	t.Helper()
	const window = 4 * time.Second
	master, replica := stack.Redis(t, stack.RedisClockAhead(t, 3*time.Second)), stack.Redis(t)
	require.NoError(t, master.Client().ConfigSet(t.Context(), "repl-diskless-sync-delay", "0").Err())
	host, port, _ := strings.Cut(master.Addr(), ":")
	require.NoError(t, replica.Client().Do(t.Context(), "REPLICAOF", host, port).Err())
	stack.Eventually(t, "the replica", func() (bool, string) {
		info := replica.Client().Info(t.Context(), "replication").Val()
		return strings.Contains(info, "master_link_status:up"), info
	})
	l := &Limit{Name: "clock", Window: window, Policy: Fixed, Max: 5, Fail: FailClosed}
	require.NoError(t, l.Check())
	take := func(limiter *Limiter, n int64) bool {
		t.Helper()
		limiter.refusals.forget(limiter.key(&Take{Limit: l, Caller: "k", Key: "k"})) // Redis decides
		a, err := limiter.Take(t.Context(), []Take{{Limit: l, Caller: "k", Key: "k", N: n}})
		require.NoError(t, err)
		return a.Allowed
	}
	period := func(server *stack.RedisServer) int64 {
		now, err := server.Client().Time(t.Context()).Result()
		require.NoError(t, err)
		return now.UnixMilli() / window.Milliseconds()
	}
	first := New(stack.ProgramClient(t, master.URL()), "turn", stack.Hung)
	stack.Eventually(t, "a period of the master's clock that has just begun", func() (bool, string) {
		return period(master) > period(replica), ""
	})
	begun := period(master)
	require.True(t, take(first, 5))
	conn := master.Client().Conn() // WAIT is about the writes of its connection
	require.NoError(t, conn.Set(t.Context(), "last", "", 0).Err())
	require.NoError(t, conn.Wait(t.Context(), 1, stack.Hung).Err())
	master.Kill()
	require.NoError(t, replica.Client().Do(t.Context(), "REPLICAOF", "NO", "ONE").Err())
	second := New(stack.ProgramClient(t, replica.URL()), "turn", stack.Hung)
	stack.Eventually(t, "the next period", func() (bool, string) {
		allowed := take(second, 1)
		if !allowed {
			refused++
		}
		require.False(t, allowed && period(replica) <= begun, "max is exceeded")
		return allowed, ""
	})
	return refused
}
