package limit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/tests/stack"
)

// playSchedules draws schedules and plays them. make test plays few, and more until all has been reached: few
// can miss by chance what they are for. make test-all and make simulate-limits play all that they draw.
func playSchedules(t *testing.T, few int, all func() bool, play func(*rapid.T)) {
	t.Helper()
	played, failed := 0, false // once one has failed, all that make it smaller are played
	for round := 0; round < 6 && !all(); round++ {
		rapid.Check(t, func(rt *rapid.T) {
			if played++; played <= few || failed || stack.All() || !all() {
				before := failed
				failed = true
				play(rt)
				failed = before
			}
		})
	}
	if !all() {
		t.Error("the schedules miss what they are for")
	}
}

// worldStart is the beginning of a cell of every window of the tests.
const worldStart = 1_763_788_800_000

// world is a limiter whose clock, and that of its Redis, is the test's.
type world struct {
	t       *testing.T
	limiter *Limiter
	client  redis.UniversalClient // nil if a ring decides
	clock   int64                 // Unix milliseconds
}

// backend is what the behaviour must be the same with.
type backend struct {
	name     string
	policies []Policy
	// start returns a client of it; nil if a ring decides.
	start func(*testing.T) redis.UniversalClient
}

var backends = []backend{
	{"server", rolling(), func(t *testing.T) redis.UniversalClient { return stack.ProgramClient(t, stack.Redis(t).URL()) }},
	{"cluster", rolling(), func(t *testing.T) redis.UniversalClient { return stack.ProgramClient(t, stack.Cluster(t, 0).URL()) }},
	{"stand-in", rolling(), func(t *testing.T) redis.UniversalClient {
		return stack.ProgramClient(t, "redis://"+miniredis.RunT(t).Addr()+"/0")
	}},
	{"ring", []Policy{Cells}, func(*testing.T) redis.UniversalClient { return nil }},
}

// TestBehaviour is one suite for every policy on every backend. Each backend is started once.
func TestBehaviour(t *testing.T) {
	t.Parallel()
	for _, b := range backends {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			client, worlds := b.start(t), 0
			// fresh is a world without hits.
			fresh := func(t *testing.T) *world {
				worlds++
				return newWorld(t, client, fmt.Sprint("world-", worlds))
			}
			for _, policy := range b.policies {
				t.Run(string(policy), func(t *testing.T) {
					t.Run("edges", func(t *testing.T) { testEdges(t, policy, fresh) })
					t.Run("together", func(t *testing.T) { testTogether(t, policy, fresh) })
					t.Run("together of many", func(t *testing.T) { testTogetherOfMany(t, policy, fresh) })
					t.Run("bad takes", func(t *testing.T) { testBadTakes(t, policy, fresh) })
					if client != nil {
						t.Run("refused from memory", func(t *testing.T) { testDeniedFromMemory(t, policy, fresh) })
						t.Run("undone", func(t *testing.T) { testTakeBack(t, policy, fresh) })
					}
				})
			}
			if client != nil {
				t.Run("cases", func(t *testing.T) { testCases(t, fresh) })
				t.Run("slots", func(t *testing.T) { checkSlots(t, "slots", nil, fresh) })
				t.Run("slots beside hits", func(t *testing.T) { testSlotsTogether(t, fresh) })
				t.Run("shadow", func(t *testing.T) { testShadowRefusesNothing(t, fresh) })
			}
		})
	}
}

func newWorld(t *testing.T, client redis.UniversalClient, namespace string) *world {
	asked := client
	if client == nil {
		asked = redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // connects to nobody as long as it is not asked
	}
	w := &world{t: t, limiter: New(asked, namespace, 5*time.Second), client: client}
	w.limiter.store.scripts = heldScripts
	w.limiter.now = func() time.Time { return time.UnixMilli(w.clock) }
	if client == nil {
		w.limiter.fallback.breaker.until.Store(math.MaxInt64) // Redis is never asked
	}
	w.at(0)
	return w
}

// people are callers, each with another hash tag.
var people = []string{"alice", "bob", "carol", "dave", "erin"}

// at sets the clock, in milliseconds from the beginning.
func (w *world) at(ms int64) {
	w.t.Helper()
	w.clock = worldStart + ms
	if w.client == nil {
		return
	}
	require.NoError(w.t, errOf(w.client.Pipelined(w.t.Context(), func(pipe redis.Pipeliner) error {
		for _, key := range people {
			setClock(w.t.Context(), pipe, hashTag(key), w.clock)
		}
		return nil
	})))
}

// take asks as a client that has not been refused yet.
func (w *world) take(takes ...Take) Answer {
	w.t.Helper()
	w.limiter.refusals.all = nil
	return w.answer(w.limiter.Take(w.t.Context(), takes))
}

func (w *world) look(takes ...Take) Answer {
	w.t.Helper()
	return w.answer(w.limiter.Look(w.t.Context(), takes))
}

func (w *world) answer(a Answer, err error) Answer {
	w.t.Helper()
	if err != nil {
		w.t.Fatalf("%v (%v)", err, errors.Unwrap(err))
	}
	for i := range a.Decisions {
		if d := &a.Decisions[i]; (d.Source == SourceLocal) != (w.client == nil) {
			w.t.Errorf("the source is %q", d.Source)
		}
	}
	return a
}

// adhoc is a limit by numbers.
func adhoc(t testing.TB, length time.Duration, most int64, policy Policy) *Limit {
	t.Helper()
	l, err := Adhoc(length, most, policy)
	require.NoError(t, err)
	return l
}

func takeOf(l *Limit, key string, n int64) Take { return Take{Limit: l, Caller: key, Key: key, N: n} }

// hook is called in place of each command, and may call next.
type hook func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error

func (hook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return h(ctx, cmd, next) }
}
func (hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// heldClock begins scripts whose Redis has a clock that tests set: the key clock{tag}. PEXPIRE and SET with
// PX note the moment in the hash expires{tag}. A key that has expired by that clock is removed before a
// script looks at it, as Redis does it.
const heldClock = `
local server, tag = redis, string.match(KEYS[1], '{%d+}')
local held, expires = tonumber(redis.call('GET', 'clock' .. tag)), 'expires' .. tag
for _, key in ipairs(KEYS) do
	local at = server.call('HGET', expires, key)
	if at and held > tonumber(at) then
		server.call('DEL', key)
	end
end
local redis = {pcall = redis.pcall}
function redis.call(name, key, ...)
	if name == 'TIME' then
		return {math.floor(held / 1000), held % 1000 * 1000}
	elseif name == 'PEXPIRE' then
		local ms = ...
		return server.call('HSET', expires, key, string.format('%.0f', held + ms))
	elseif name == 'SET' then
		local value, _, ms = ...
		server.call('HSET', expires, key, string.format('%.0f', held + ms))
		return server.call('SET', key, value)
	end
	return server.call(name, key, ...)
end
`

// The scripts of most tests give back and remove in steps of a few hits.
var heldScripts, heldWhole = newScripts(heldClock, 3, source), newScripts(heldClock, 1_000_000, source)

// setClock sets the clock of the keys with a tag; pipe may be a client or a pipeline.
func setClock(ctx context.Context, pipe redis.Cmdable, tag uint64, unixMilli int64) *redis.StatusCmd {
	return pipe.Set(ctx, fmt.Sprintf("clock{%d}", tag), unixMilli, 0)
}
