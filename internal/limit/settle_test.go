package limit

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/tests/stack"
)

// TestSettlementsAgainstModel draws takes and give-backs with ids and without, settlements, corrections and
// resets, whose requests or replies are lost and repeated, by two processes that share a Redis. Every answer
// is the model's, so each take has the hits that it was settled with last, at its own time or later.
// `make simulate-limits` draws more.
func TestSettlementsAgainstModel(t *testing.T) {
	t.Parallel()
	client := stack.Redis(t, stack.RedisArgs("--appendonly", "no")).Client()
	var seen settlementsSeen
	round := 0
	playSchedules(t, 40, seen.all, func(rt *rapid.T) {
		round++
		if problem := playSettlements(t, rt, client, heldWhole, fmt.Sprint("settlements-", round), &seen); problem != "" {
			rt.Fatal(problem)
		}
	})
	t.Logf("%+v", seen)
}

// TestPlantedBugsOfSettlementsAreFound plants bugs in the scripts, one at a time. The model finds each.
func TestPlantedBugsOfSettlementsAreFound(t *testing.T) {
	t.Parallel()
	client := stack.Redis(t, stack.RedisArgs("--appendonly", "no")).Client()
	testPlantedBugs(t, []plantedBug{
		{"a take that is repeated counts twice", "decide", "s.fits and s.n > 0 and not s.again and mode", "s.fits and s.n > 0 and mode"},
		{"an id may be used again with other hits", "ids", "s.again = r.n == s.n and not once", "s.again = not once"},
		{"once counts for nothing", "ids", "s.again = r.n == s.n and not once", "s.again = r.n == s.n"},
		{"a number is replaced in spite of once", "ids", "not r or once and r.settled >= 0", "not r"},
		{"a give-back never ends", "decide", "s.record.base = rest", ""},
		{"a settlement gives nothing back", "ids", "give(r.base - base, r.at)", ""},
		{"a settlement gives back the newest", "ids", "math.huge, at, nil, true)", "math.huge)"},
		{"a settlement gives back older hits, too", "ids", "math.huge, at, nil, true)", "math.huge, at)"},
		{"what a settlement adds is added again", "ids", "if extra ~= before then", "if true then"},
		{"a correction leaves what was added", "ids", "give(r.extra, r.later)", ""},
		{"the hits at the time of the take rise again", "ids", "local base, before = math.min(r.base, s.n)", "local base, before = math.min(r.n, s.n)"},
		{"a take from before a reset is given back", "ids", "began(key, s) ~= r.began", "false"},
		{"a correction adds again what a reset took", "ids", "math.max(r.base, r.settled), 0", "r.base, 0"},
		{"old hits take the beginning of a key of log along", "log", "p.began(key) and 1 or 0", "0"},
		{"an id is not remembered for longer once it is settled", "ids", "'%.0f', r.ttl))", "'%.0f', s.again and 1 or r.ttl))"},
		{"log keeps all that has happened", "decide", "s.policy.bounded and 2 * s.max or math.huge", "math.huge"},
	}, 600, func(rt *rapid.T, scripts *scriptSet, name string) string {
		return playSettlements(t, rt, client, scripts, name, new(settlementsSeen))
	})
}

// plantedBug replaces a text of a Lua file by a wrong one.
type plantedBug struct{ name, file, right, wrong string }

// testPlantedBugs plays up to so many schedules with each bug, under names of their own, until one has a
// problem.
func testPlantedBugs(t *testing.T, bugs []plantedBug, schedules int, play func(rt *rapid.T, scripts *scriptSet, name string) (problem string)) {
	t.Helper()
	for i, bug := range bugs {
		t.Run(bug.name, func(t *testing.T) {
			text := source(bug.file)
			require.Equal(t, 1, strings.Count(text, bug.right), bug.right)
			planted := newScripts(heldClock, 1_000_000, func(name string) string {
				if name == bug.file {
					return strings.Replace(text, bug.right, bug.wrong, 1)
				}
				return source(name)
			})
			for seed := range schedules {
				problem := ""
				rt := rapid.Custom(func(rt *rapid.T) bool {
					problem = play(rt, planted, fmt.Sprint("planted-", i, "-", seed))
					return true
				})
				if rt.Example(seed); problem != "" {
					t.Logf("found by seed %d: %.300s", seed, problem)
					return
				}
			}
			t.Errorf("not found in %d schedules", schedules)
		})
	}
}

type settlementsSeen struct{ Allowed, Refused, Repeated, Fewer, Over, Beyond, Corrected, Reset, Conflicts, Unknown int }

// all reports whether each kind was drawn.
func (s *settlementsSeen) all() bool {
	return !slices.Contains([]int{s.Allowed, s.Refused, s.Repeated, s.Fewer, s.Over, s.Beyond, s.Corrected, s.Reset, s.Conflicts, s.Unknown}, 0)
}

// settlesModel is what the limit of a key must answer.
type settlesModel struct {
	limit *Limit
	slot  int64 // hits of the same slot of time count as of one time, ms
	hits  []hits
	ids   map[string]*idModel
	began int64 // the first take with an id since the key was reset or, under log, lost its last hit; 0: none
	ends  int64 // when a key of log expires
}

// idModel is a take with an id.
type idModel struct {
	n, ttl    int64
	at, base  int64 // when it counted, and its hits that still do
	extra     int64 // hits that settlements added
	later     int64 // when
	settled   int64 // -1: it was not
	began     int64 // that of the key when it last counted
	forgotten int64 // when its id is
}

func (m *settlesModel) inWindow(at, now int64) bool {
	if m.limit.Policy == Cells {
		return at/m.slot >= (now-m.limit.Window.Milliseconds())/m.slot
	}
	return at > now-m.limit.Window.Milliseconds()
}

func (m *settlesModel) count(now int64) (sum int64) {
	for _, h := range m.hits {
		if m.inWindow(h.at, now) {
			sum += h.n
		}
	}
	return sum
}

// give takes back the newest n hits, or at most n of a time.
func (m *settlesModel) give(now, n, at int64) {
	if n <= 0 {
		return
	}
	before := m.count(now)
	defer func() {
		switch left := m.count(now); {
		case left == 0 && m.limit.Policy == Log:
			m.began = 0 // the key goes with them
		case left < before:
			m.ends = now + m.limit.Window.Milliseconds()
		}
	}()
	for i := len(m.hits) - 1; i >= 0 && n > 0; i-- {
		h := &m.hits[i]
		if m.inWindow(h.at, now) && (at == 0 || h.at/m.slot == at/m.slot) {
			less := min(n, h.n)
			h.n, n = h.n-less, n-less
		}
	}
}

func (m *settlesModel) add(now, n int64, withID bool) {
	m.hits, m.ends = append(m.hits, hits{now, n}), now+m.limit.Window.Milliseconds()
	if withID && m.began == 0 {
		m.began = now
	}
}

// known returns the take that Redis remembers by an id.
func (m *settlesModel) known(id string, now int64) *idModel {
	if r := m.ids[id]; r != nil && r.forgotten >= now {
		return r
	}
	return nil
}

// open returns the ids of the takes that can be settled.
func (m *settlesModel) open(now int64) (ids []string) {
	for _, id := range slices.Sorted(maps.Keys(m.ids)) {
		if r := m.known(id, now); r != nil && r.n > 0 {
			ids = append(ids, id)
		}
	}
	return ids
}

// playSettlements plays a drawn schedule, and returns the first difference from the model, or nothing.
func playSettlements(t *testing.T, rt *rapid.T, client *redis.Client, held *scriptSet, namespace string, seen *settlementsSeen) string {
	l := &Limit{
		Name: "tokens", Window: rapid.SampledFrom([]time.Duration{boundWindow, 20 * boundWindow}).Draw(rt, "window"), Max: 10,
		Policy: rapid.SampledFrom([]Policy{Cells, Cells, Log, Log, Stream}).Draw(rt, "policy"), Fail: FailClosed,
	}
	cell := l.Window.Milliseconds() / 60
	m := &settlesModel{limit: l, slot: 1, ids: make(map[string]*idModel)}
	if l.Policy == Cells {
		m.slot = cell
	}
	var now atomic.Int64
	now.Store(worldStart)
	var processes []*boundProcess
	for range 2 {
		p := &boundProcess{trouble: &trouble{now: now.Load}}
		own := redis.NewClient(client.Options())
		defer own.Close()
		own.AddHook(p.trouble)
		p.limiter = New(own, namespace, time.Minute)
		p.limiter.store.scripts = held
		p.limiter.now = func() time.Time { return time.UnixMilli(now.Load()) }
		processes = append(processes, p)
	}
	var story []string
	stays := 0 // steps in which no time passes, so that what is taken after a reset is in the same cells
	for range rapid.IntRange(10, 60).Draw(rt, "steps") {
		cells := rapid.SampledFrom([]int64{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 7, 30, 59, 60, 61, 600}).Draw(rt, "cells")
		if stays--; stays >= 0 {
			cells = 0
		}
		at := now.Add(cell * cells)
		require.NoError(t, setClock(t.Context(), client, hashTag("alice"), at).Err())
		p := processes[rapid.IntRange(0, 1).Draw(rt, "process")]
		action := rapid.SampledFrom([]string{"take", "take", "take", "plain", "settle", "settle", "settle", "reset"}).Draw(rt, "action")
		take := Take{Limit: l, Caller: "alice", Key: "alice", N: rapid.Int64Range(-3, 6).Draw(rt, "n")}
		if action == "reset" {
			if rapid.IntRange(0, 4).Draw(rt, "really") == 0 {
				require.NoError(t, p.limiter.Reset(t.Context(), take))
				m.hits, m.began = nil, 0
				stays = 5
				seen.Reset++
				now.Add(1) // what is taken from now on has another time
				story = append(story, "reset")
			}
			continue
		}
		if action != "plain" {
			take.ID = fmt.Sprint("id-", rapid.IntRange(1, 4).Draw(rt, "id"))
			take.Once = rapid.IntRange(0, 7).Draw(rt, "once") == 0
		}
		switch action {
		case "take":
			if l.Policy != Stream {
				take.TTL = time.Duration(rapid.SampledFrom([]int64{0, 1, 30, 3600}).Draw(rt, "ttl")) * time.Second
			}
			if id := m.known(take.ID, at); id != nil && rapid.IntRange(0, 2).Draw(rt, "again") > 0 { // else another number
				take.N = id.n
			}
		case "settle":
			if open := m.open(at); len(open) > 0 && rapid.IntRange(0, 3).Draw(rt, "of those known") > 0 {
				take.ID = rapid.SampledFrom(open).Draw(rt, "open")
			}
			take.N = rapid.SampledFrom([]int64{0, 1, 3, 4, 5, 9, 12, 40}).Draw(rt, "settled")
			if id := m.known(take.ID, at); id != nil && id.settled >= 0 && rapid.IntRange(0, 2).Draw(rt, "again") == 0 {
				take.N = id.settled
			}
		}
		if take.ID != "" && !take.Once {
			for _, what := range rapid.SampledFrom([][]string{nil, nil, {"lost"}, {"unsent"}, {"lost", "lost"}}).Draw(rt, "trouble") {
				p.trouble.next(what)
				if _, err := askSettling(t, p.limiter, action, take); l.Policy != Stream || action != "settle" {
					require.ErrorAs(t, err, new(*UnavailableError))
				}
			}
			p.trouble.next("")
			p.limiter.fallback.breaker.succeeded()
		}
		p.limiter.refusals.forget(p.limiter.key(&take))
		a, err := askSettling(t, p.limiter, action, take)
		got := outcomeText(a, err)
		want := m.want(action, &take, at, seen)
		story = append(story, fmt.Sprintf("%d s: %s %+d %s once %t for %s: %s", (at-worldStart)/1000, action, take.N, take.ID, take.Once, take.TTL, got))
		if got != want {
			return fmt.Sprintf("%s: want %s\n%s", l.Policy, want, strings.Join(story, "\n"))
		}
		if a.Decisions != nil && !a.Allowed && l.Policy != Cells {
			if later := at + a.Decisions[0].RetryAfter.Milliseconds(); m.count(later)+take.N > l.Max {
				return fmt.Sprintf("%s: not allowed after %s\n%s", l.Policy, a.Decisions[0].RetryAfter, strings.Join(story, "\n"))
			}
		}
	}
	return ""
}

func askSettling(t *testing.T, l *Limiter, action string, take Take) (Answer, error) {
	if action == "settle" {
		return l.Settle(t.Context(), []Take{take})
	}
	return l.Take(t.Context(), []Take{take})
}

func outcomeText(a Answer, err error) string {
	var bad *IDError
	switch {
	case errors.As(err, &bad):
		return [...]string{"reused", "unknown", "not settled"}[bad.Reason]
	case err != nil:
		return err.Error()
	}
	d := a.Decisions[0]
	settled := "not settled"
	if d.Settled != nil {
		settled = fmt.Sprintf("settled %d, over %d", *d.Settled, d.Over)
	}
	return fmt.Sprintf("allowed %t, remaining %d, %s", a.Allowed, d.Remaining, settled)
}

// want does what the limiter must do, and returns what it must answer. Whether it was repeated is not
// compared, because a request whose reply was lost is.
func (m *settlesModel) want(action string, t *Take, now int64, seen *settlementsSeen) string {
	id, most, allowed, beyond := m.known(t.ID, now), m.limit.Max, true, int64(0)
	if m.limit.Policy == Log && now > m.ends {
		m.began = 0
	}
	switch {
	case action == "settle" && (m.limit.Policy == Stream || id != nil && id.n <= 0):
		return "not settled"
	case action == "settle" && (id == nil || t.Once && id.settled >= 0):
		seen.Unknown++
		return "unknown"
	case action == "settle":
		beyond = m.settle(id, t.N, now, seen)
	case id != nil && (id.n != t.N || t.Once):
		seen.Conflicts++
		return "reused"
	case id != nil:
		seen.Repeated++
	case t.N > 0 && m.count(now)+t.N > most:
		seen.Refused++
		allowed = false
	default:
		seen.Allowed++
		id = &idModel{n: t.N, ttl: t.ttl().Milliseconds(), at: now, base: t.N, settled: -1}
		id.forgotten = now + id.ttl
		if t.N > 0 {
			m.add(now, t.N, t.ID != "")
			id.began = m.began
		} else {
			m.give(now, -t.N, 0)
		}
		if t.ID != "" {
			m.ids[t.ID] = id
		}
	}
	count, settled := m.count(now), "not settled"
	if id != nil && id.settled >= 0 {
		settled = fmt.Sprintf("settled %d, over %d", id.settled, max(0, count+beyond-most))
	}
	return fmt.Sprintf("allowed %t, remaining %d, %s", allowed, max(0, most-count), settled)
}

// settle sets the hits of a take, and returns how many of them are not kept.
func (m *settlesModel) settle(id *idModel, n, now int64, seen *settlementsSeen) (beyond int64) {
	id.forgotten = now + id.ttl
	if id.settled >= 0 && id.settled != n {
		seen.Corrected++
	}
	if id.began != m.began || id.extra > 0 && id.later <= now-m.limit.Window.Milliseconds() {
		id.at, id.base, id.extra = -1, max(id.base, id.settled), 0 // what has gone
	}
	if id.settled != n {
		base, added := min(id.base, n), max(0, id.settled-id.base)
		if base < id.base {
			seen.Fewer++
			m.give(now, id.base-base, id.at)
		}
		id.base, id.settled = base, n
		if extra := n - base; extra != added {
			m.give(now, id.extra, id.later)
			if m.limit.Policy == Log {
				extra = min(extra, max(0, 2*m.limit.Max-m.count(now)))
			}
			id.extra, id.later = extra, now
			if extra > 0 {
				seen.Over++
				m.add(now, extra, true)
				id.began = m.began
			}
		}
	}
	if m.limit.Policy == Log && m.inWindow(id.later, now) {
		beyond = n - id.base - id.extra
	}
	if beyond > 0 {
		seen.Beyond++
		if m.began == 0 {
			m.began = now
		}
		id.began = m.began
	}
	return beyond
}
