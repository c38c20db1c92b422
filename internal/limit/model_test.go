package limit

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/big"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/tests/stack"
)

// rolling are the policies whose hits leave the window one by one.
func rolling() []Policy { return policiesThat(func(t *Traits) bool { return !t.Slots && !t.Turns }) }

// model is a key as doc.go describes it, by brute force: a slice of hits, which every question walks
// through from the beginning.
type model struct {
	cells       bool // as the policy Cells counts; otherwise exactly
	keeps       bool // the date of the last hit, also if it is given back
	local       bool // as a ring counts: nothing expires, and it also restarts at a check that counts nothing
	window, max int64
	ahead       int64 // how much ahead hits are dated if they are a share
	size        int64 // of a cell
	hits        []hits
	last        int64 // the date of the last hit that was counted, or of cells the time at which it was
	expires     int64 // 0 before the first hit
	left        int64 // in the window when hits were given back last
	step        int64 // hits of the policy Log that a script gives back, or removes beyond those it adds; 0: all
}

// hits are n hits of a date.
type hits struct{ at, n int64 }

func newModel(l *Limit, local bool) *model {
	w := l.Window.Milliseconds()
	return &model{cells: local || l.Policy == Cells, keeps: local || l.Policy != Log, local: local, window: w, max: l.Max, ahead: l.Share.For.Milliseconds(), size: (w + 59) / 60}
}

// moment is a model at a time.
type moment struct {
	now, newest            int64 // of the key, and the date before which the exact policies count nothing
	anew                   bool  // the clock has gone back by more than a window
	lower, estimate, upper int64
	truth                  int64 // the hits in the window
}

// expire removes what Redis would have removed by now.
func (m *model) expire(clock int64) {
	if m.expires > 0 && clock > m.expires && !m.local {
		m.hits, m.last, m.expires = nil, 0, 0
	}
}

// newest is the time that the key's own time never goes back behind.
func (m *model) newest() int64 {
	if m.keeps {
		return m.last
	}
	if len(m.hits) == 0 {
		return 0
	}
	return m.hits[len(m.hits)-1].at
}

// at looks at the model and changes nothing.
func (m *model) at(clock int64) moment {
	t := m.newest()
	if !m.cells {
		t -= m.ahead
	}
	out := moment{now: max(clock, t), newest: m.newest()}
	if t-clock > m.window {
		return moment{now: clock, anew: true}
	}
	from := out.now - m.window
	cut := int64(0)
	for _, h := range m.hits {
		if h.at > from {
			out.truth += h.n
		}
		switch cell := h.at / m.size; {
		case cell > from/m.size:
			out.lower += h.n
		case cell == from/m.size:
			cut += h.n
		}
	}
	if !m.cells {
		out.lower, out.estimate, out.upper = out.truth, out.truth, out.truth
		return out
	}
	inside := (from/m.size+1)*m.size - from
	out.estimate = out.lower + shareOf(cut, inside, m.size)
	out.upper = out.lower + cut
	return out
}

// shareOf returns n·part / whole, rounded up.
func shareOf(n, part, whole int64) int64 {
	if n < math.MaxInt64/whole-1 {
		return (n*part + whole - 1) / whole
	}
	exact := new(big.Int).Mul(big.NewInt(n), big.NewInt(part))
	return exact.Add(exact, big.NewInt(whole-1)).Div(exact, big.NewInt(whole)).Int64()
}

func (m *model) fits(clock, n int64) bool { return n <= 0 || m.at(clock).estimate+n <= m.max }

// wait is the milliseconds until n hits fit, if nothing else comes.
func (m *model) wait(clock, n int64) int64 {
	return int64(sort.Search(int(3*m.window+m.size), func(w int) bool { return m.fits(clock+int64(w), n) }))
}

// add counts n hits, dated ahead if they are a share's, and returns their date.
func (m *model) add(clock, n, ahead int64) (date int64) {
	at := m.at(clock)
	if at.anew {
		m.hits, m.last = nil, 0
	}
	date = at.now + ahead
	if !m.cells {
		date = max(date, at.newest)
		m.trim(at.now, n)
		m.expires, m.last = date+m.window, date
	} else {
		if m.last/m.size < at.now/m.size {
			m.expires = at.now + m.window + 5*m.size
		}
		m.last = at.now
	}
	m.hits = append(m.hits, hits{date, n})
	slices.SortStableFunc(m.hits, func(a, b hits) int { return cmp.Compare(a.at, b.at) })
	return date
}

// give takes back the newest n hits that are, or for cells may be, in the window, those dated ahead last, and
// returns how many there were.
func (m *model) give(clock, n int64) (given int64) {
	at := m.at(clock)
	if m.step > 0 && min(n, at.truth) > m.step && n < at.truth && !at.anew {
		// The newest hit may be gone then, and with it the time that waited for a clock that went back.
		rest, step := min(n, at.truth)-m.step, m.step
		m.step = 0
		m.give(clock, step)
		m.step = step
		return step + m.give(clock, rest)
	}
	m.left = max(0, at.truth-n)
	switch {
	case at.anew && m.cells:
		return 0
	case at.anew:
		m.hits, m.last = nil, 0
		return 0
	case !m.cells && n >= at.truth: // the key goes, and with it what had left the window
		m.hits, m.last = nil, 0
		return at.truth
	case !m.cells:
		m.expires = max(at.now, at.newest) + m.window
	}
	for _, ahead := range []bool{false, true} {
		for i := len(m.hits) - 1; i >= 0 && n > 0; i-- {
			h := &m.hits[i]
			isAhead := h.at > at.now
			if m.cells {
				isAhead = h.at/m.size > at.now/m.size
			}
			from := at.now - m.window
			if isAhead != ahead || m.cells && h.at/m.size < from/m.size || !m.cells && h.at <= from {
				continue
			}
			less := min(n, h.n)
			h.n -= less
			n, given = n-less, given+less
		}
		for i := range m.hits { // a stream keeps what is ahead of hits that were given back as one entry
			if h := &m.hits[i]; !ahead && given > 0 && m.keeps && !m.cells && h.at > at.now {
				h.at = at.newest
			}
		}
	}
	m.hits = slices.DeleteFunc(m.hits, func(h hits) bool { return h.n == 0 })
	return given
}

// trim removes what has left the window, of which a script that adds n hits in steps leaves the rest.
func (m *model) trim(now, n int64) {
	most := n + m.step
	if m.step == 0 {
		most = math.MaxInt64
	}
	for i := range m.hits {
		if h := &m.hits[i]; h.at <= now-m.window {
			less := min(h.n, most)
			h.n, most = h.n-less, most-less
		}
	}
	m.hits = slices.DeleteFunc(m.hits, func(h hits) bool { return h.n == 0 })
}

// decideByModels is what a script does, by models of the takes' keys.
// ahead is how much the hits of a share are dated ahead; 0 for takes.
func decideByModels(models []*model, clock int64, ns []int64, count bool, ahead int64) []state {
	out, all := make([]state, len(models)), true
	for i, m := range models {
		m.expire(clock)
		if m.local && m.at(clock).anew {
			m.hits, m.last = nil, 0
		}
		out[i].fits = m.fits(clock, ns[i])
		all = all && out[i].fits
	}
	for i, m := range models {
		at := m.at(clock)
		if all && count && ns[i] < 0 {
			out[i].counted = -m.give(clock, -ns[i])
			if at = m.at(clock); !m.cells { // by the time before, which the newest hits may have taken along
				at.lower, at.estimate, at.upper = m.left, m.left, m.left
			}
		}
		out[i].lower, out[i].estimate, out[i].upper = at.lower, at.estimate, at.upper
		if !out[i].fits {
			out[i].wait = time.Duration(m.wait(clock, ns[i])) * time.Millisecond
		}
		if all && count && ns[i] > 0 {
			out[i].counted, out[i].at = ns[i], m.add(clock, ns[i], ahead)
		}
	}
	return out
}

// TestPoliciesAgainstModels runs every policy and the local ring through drawn schedules: bursts, edges of
// windows and cells, weights, give-backs, looks, clocks that step forward and back. Each must say what its
// model says, and log and stream have the same model. For cells, the truth must lie between the bounds.
// `make simulate-limits N=100000` runs more schedules.
func TestPoliciesAgainstModels(t *testing.T) {
	t.Parallel()
	server := stack.Redis(t, stack.RedisArgs("--appendonly", "no"))
	client := server.Client()
	for _, script := range heldWhole.decide {
		require.NoError(t, script.Load(t.Context(), client).Err())
	}
	var seen tally
	began := time.Now()
	playSchedules(t, 50, seen.all, func(rt *rapid.T) {
		s := drawSchedule(rt)
		problem := s.play(&seen)
		if problem == "" {
			problem = s.compare(t, client, heldWhole)
		}
		if problem != "" {
			rt.Fatal(problem)
		}
	})
	took := time.Since(began)
	t.Logf("%d schedules in %s (%.0f a second), no difference: %+v", seen.Schedules, took.Round(time.Millisecond), float64(seen.Schedules)/took.Seconds(), seen)
}

// With its last hits a key forgets their date, too, though the clock is before it, under every exact policy.
func TestTheLastHitsTakeTheirDateAlong(t *testing.T) {
	t.Parallel()
	client := stack.Redis(t, stack.RedisArgs("--appendonly", "no")).Client()
	for _, script := range heldWhole.decide {
		require.NoError(t, script.Load(t.Context(), client).Err())
	}
	s := &schedule{limits: []simLimit{{60_000, 3, 1}}, shares: true, calls: []simCall{
		{step: "none", ns: []int64{1}, count: true},
		{step: "ms", by: 998, ns: []int64{2}, count: true}, // a second later
		{step: "none", ns: []int64{-2}, count: true},
		{step: "back", by: -1, ns: []int64{-1}, count: true}, // half a second before
		{step: "none", ns: []int64{1}, count: true},
	}}
	require.Empty(t, s.play(new(tally)))
	require.Empty(t, s.compare(t, client, heldWhole))
}

// TestPlantedBugsOfSharesAreFound plants bugs in the scripts, one at a time. The models find each.
func TestPlantedBugsOfSharesAreFound(t *testing.T) {
	t.Parallel()
	client := stack.Redis(t, stack.RedisArgs("--appendonly", "no")).Client()
	testPlantedBugs(t, []plantedBug{
		{"hits are dated when they are acquired", "decide", "mode == '5' and tonumber(ARGV[#ARGV]) or 0", "0"},
		{"the rest is given back at the wrong date", "decide", "or s.score) or s.date", "or s.score) or s.now"},
		{"a give-back takes those of others' shares", "decide", "at or s.later and s.now", "at"},
		{"a give-back leaves what is dated ahead", "decide", "if s.later and not at and rest == 0", "if false"},
		{"a key ends with its window", "decide", "s.expiry = s.date - clock", "s.expiry = s.now - clock"},
		{"a key of cells ends with its window", "cells", "(2 + ahead) * s.size", "2 * s.size"},
		{"the time of cells moves with the date", "cells", "format('%d', s.now), format", "format('%d', s.date), format"},
		{"cells forget what is ahead", "cells", "if s.cell <= s.last then", "if false then"},
		{"the time of log is the newest date", "log", "date - ahead(window, lease)", "date"},
		{"cells multiply beyond 2^53", "cells", "product < 2 ^ 53", "product < 2 ^ 83"},
		{"cells divide two digits of three", "cells", "bit = 20, 0, -10", "bit = 10, 0, -10"},
		{"log does not count what is ahead", "log", "s.now - window, '+inf'", "s.now - window, s.now"},
		{"log repeats a date", "log", "math.max(s.now + later, date), date", "s.now + later, date"},
		{"the time of stream is the newest date", "stream", "s.newest.ms - ahead(window, lease)", "s.newest.ms"},
	}, 3000, func(rt *rapid.T, scripts *scriptSet, name string) string {
		s, seen := drawSchedule(rt), tally{}
		if problem := s.play(&seen); problem != "" {
			return problem
		}
		for _, script := range scripts.decide[:1<<len(rolling())] {
			if exists, _ := script.Exists(t.Context(), client).Result(); !exists[0] {
				require.NoError(t, script.Load(t.Context(), client).Err())
			}
		}
		return s.compare(t, client, scripts)
	})
}

// tally is what schedules had in them.
type tally struct{ Schedules, Calls, Refused, GivenBack, Anew, Straddled, Shares int }

func (s *tally) all() bool {
	return s.Refused > 0 && s.GivenBack > 0 && s.Anew > 0 && s.Straddled > 0 && s.Shares > 0
}

// schedule is calls about the same one or two limits, which every policy decides about.
type schedule struct {
	limits []simLimit
	calls  []simCall
	parts  []*simPart
	shares bool // the limit has them

	givesBack bool // any of the calls does
}

// simLimit is a limit's numbers. Cells and the ring count scale hits where the exact policies count one.
type simLimit struct{ window, max, scale int64 }

type simCall struct {
	step  string // how the clock moves before; see clockAt
	by    int64
	ns    []int64 // for each limit
	count bool
	share bool  // of one limit whose window is long enough: the hits are a share
	clock int64 // that comes of it
}

// simPart is a policy in a schedule.
type simPart struct {
	name   string
	policy Policy
	local  *accounts // nil if Redis keeps the hits
	limits []*Limit
	models []*model
	want   [][]state // for each call
}

const longestCell = 366*24*60_000 - 1 // milliseconds

var (
	simWindows = rapid.SampledFrom([]int64{1000, 1001, 2000, 10_000, 60_000, 61_000, 3_600_000, 60 * longestCell})
	simMax     = rapid.SampledFrom([]int64{1, 2, 3, 5, 10, 30, 1200})
	// The last makes shares of a cell of the longest window nearly whole hits, so that it shows if a double has
	// rounded one.
	simScales = rapid.SampledFrom([]int64{1, 1, 7, 100_003, longestCell + 1})
	simSteps  = rapid.SampledFrom([]string{"none", "none", "ms", "cells", "window", "edge", "edge", "wait", "wait", "back", "back far"})
)

func drawSchedule(t *rapid.T) *schedule {
	s := new(schedule)
	for range rapid.IntRange(1, 2).Draw(t, "limits") {
		l := simLimit{simWindows.Draw(t, "window"), simMax.Draw(t, "max"), simScales.Draw(t, "scale")}
		if len(s.limits) == 1 && l.window == s.limits[0].window {
			l.window += 1000 // two limits of one window would be the same key
		}
		s.limits = append(s.limits, l)
	}
	s.shares = len(s.limits) == 1 && s.limits[0].window >= 20_000 && rapid.Bool().Draw(t, "shares")
	call := rapid.Custom(func(t *rapid.T) simCall {
		c := simCall{step: simSteps.Draw(t, "step"), by: rapid.Int64Range(-2, 62).Draw(t, "by"), count: rapid.IntRange(0, 5).Draw(t, "look") < 5}
		c.share = s.shares && rapid.IntRange(0, 2).Draw(t, "share") == 0
		for _, l := range s.limits {
			c.ns = append(c.ns, rapid.OneOf(rapid.Int64Range(1, min(3, l.max)), rapid.Int64Range(1, l.max), rapid.Int64Range(-l.max-1, 0)).Draw(t, "n"))
		}
		return c
	})
	s.calls = rapid.OneOf(rapid.SliceOfN(call, 1, 10), rapid.SliceOfN(call, 20, 60)).Draw(t, "calls")
	return s
}

// maxFields is the most that a key of the policy Cells has: 64 cells and t, e and s.
const maxFields = 67

const simStart = 1_763_788_800_123

// clockAt is the time of call i. now is that of the call before, and waits are the waits that it returned.
func (s *schedule) clockAt(i int, now int64, waits []int64) int64 {
	c, l := &s.calls[i], s.limits[i%len(s.limits)]
	size := (l.window + 59) / 60
	earlier := simStart
	if i > 0 {
		earlier = int(s.calls[int(c.by+2)%i].clock)
	}
	switch c.step {
	case "ms":
		return now + c.by + 2
	case "cells": // to the beginning of a later cell, or around it
		return (now/size+c.by+2)*size + c.by%3
	case "window":
		return now + l.window + c.by
	case "edge": // an earlier hit leaves now, has just left, or is about to
		return max(now, int64(earlier)+l.window+c.by%3-1)
	case "wait": // it is allowed now, or a millisecond later
		return now + waits[int(c.by+2)%len(waits)] - (c.by+2)%2
	case "back":
		return now - (c.by+2)*size/2
	case "back far": // around a window
		return now - l.window*(1+(c.by+2)%2) + c.by%3
	}
	return now
}

// play runs a schedule through models, and notes what they say. It returns a problem if cells have promised
// too much, or nothing.
func (s *schedule) play(seen *tally) string {
	seen.Schedules++
	s.parts, s.givesBack = nil, false
	for _, policy := range append(rolling(), "ring") {
		p := &simPart{name: string(policy), policy: policy}
		if policy == "ring" {
			p.policy, p.local = Cells, new(accounts)
		}
		for _, l := range s.limits {
			if p.policy == Cells {
				l.max *= l.scale
			}
			limit := &Limit{Window: time.Duration(l.window) * time.Millisecond, Max: l.max, Policy: p.policy, Fail: FailLocal}
			if s.shares && p.local == nil {
				limit.Share = Share{Hits: 2, For: min(limit.Window/sharesPerWindow, MaxShare)}
			}
			p.limits, p.models = append(p.limits, limit), append(p.models, newModel(limit, p.local != nil))
		}
		s.parts = append(s.parts, p)
	}
	clock, waits := int64(simStart), []int64{0}
	for i := range s.calls {
		c := &s.calls[i]
		seen.Calls++
		clock = s.clockAt(i, clock, waits)
		c.clock, waits = clock, waits[:0]
		for _, p := range s.parts {
			for _, m := range p.models {
				if m.at(clock).anew {
					seen.Anew++
				}
			}
			want := decideByModels(p.models, clock, s.ns(p, c), c.count, s.ahead(p, c))
			p.want = append(p.want, want)
			for j, m := range p.models {
				at := m.at(clock)
				if s.ahead(p, c) > 0 && want[j].counted > 0 {
					seen.Shares++
				}
				allowed := fitsAll(want) && c.count && c.ns[j] > 0
				if at.truth < at.lower || at.truth > at.upper || allowed && at.truth > m.max+want[j].upper-want[j].estimate {
					return fmt.Sprintf("%s, call %d, limit %d: %d hits are in the window, and %+v was said\n%s", p.name, i, j, at.truth, want[j], s.story(p, i))
				}
			}
			for j, w := range want {
				waits = append(waits, w.wait.Milliseconds())
				if !w.fits {
					seen.Refused++
				}
				if c.ns[j] < 0 && c.count {
					seen.GivenBack++
					s.givesBack = true
				}
				if w.lower < w.upper {
					seen.Straddled++
				}
			}
		}
	}
	return ""
}

func fitsAll(states []state) bool {
	return !slices.ContainsFunc(states, func(s state) bool { return !s.fits })
}

func (s *schedule) ns(p *simPart, c *simCall) []int64 {
	out := make([]int64, len(c.ns))
	for i, n := range c.ns {
		out[i] = n
		if p.policy == Cells {
			out[i] *= s.limits[i].scale
		}
	}
	return out
}

// compare plays the schedule in Redis and in rings, and says the first difference or nothing.
func (s *schedule) compare(t *testing.T, client *redis.Client, scripts *scriptSet) string {
	ctx := t.Context()
	pipe := client.Pipeline()
	pipe.FlushDB(ctx)
	replies, sizes := make([][]*redis.Cmd, len(s.parts)), make([][]*redis.IntCmd, len(s.parts))
	st := redisStore{scripts: scripts}
	for i := range s.calls {
		c := &s.calls[i]
		setClock(ctx, pipe, hashTag("k"), c.clock)
		for j, p := range s.parts {
			if p.local != nil {
				continue
			}
			r := s.request(p, c)
			script, keys, args := st.command(modeOf(c.count, r.share), r, 0)
			replies[j] = append(replies[j], pipe.EvalSha(ctx, script.Hash(), keys, args...))
			for _, key := range r.keys {
				sizes[j] = append(sizes[j], sizeOf(ctx, pipe, p.policy, key))
			}
		}
	}
	_, err := pipe.Exec(ctx)
	if err != nil {
		return err.Error()
	}
	for j, p := range s.parts {
		for k, size := range sizes[j] {
			call, most := k/len(p.limits), p.limits[k%len(p.limits)].Max
			switch p.policy {
			case Cells:
				most = maxFields
			case Stream:
				if s.givesBack {
					most *= 2 // an entry can be followed by one with how much of it remains
				}
			}
			if size.Val() > most {
				return fmt.Sprintf("%s, call %d: %d are kept\n%s", p.name, call, size.Val(), s.story(p, call))
			}
		}
		for i := range s.calls {
			c := &s.calls[i]
			r := s.request(p, c)
			var got []state
			if p.local != nil {
				got = p.local.decideLocally(r, time.UnixMilli(c.clock))
			} else {
				reply, err := replies[j][i].Slice()
				if err == nil {
					got, _, err = parseStates(reply, r.takes)
				}
				if err != nil {
					return err.Error()
				}
			}
			for k := range got {
				if p.local != nil { // which says no more than what it decides
					got[k].counted, got[k].at = p.want[i][k].counted, p.want[i][k].at
				}
				if got[k] != p.want[i][k] {
					return fmt.Sprintf("%s, call %d, limit %d: %+v, and the model says %+v\n%s", p.name, i, k, got[k], p.want[i][k], s.story(p, i))
				}
			}
		}
	}
	return ""
}

func modeOf(counts, share bool) mode {
	switch {
	case share:
		return acquire
	case counts:
		return count
	}
	return look
}

// ahead is how much a call's hits are dated ahead. A ring has no shares.
func (s *schedule) ahead(p *simPart, c *simCall) int64 {
	if p.local != nil || !c.share || !c.count || c.ns[0] <= 0 {
		return 0
	}
	return p.limits[0].Share.For.Milliseconds()
}

// sizeOf asks how many hits or cells a key has.
func sizeOf(ctx context.Context, pipe redis.Cmdable, policy Policy, key string) *redis.IntCmd {
	switch policy {
	case Log:
		return pipe.ZCard(ctx, key)
	case Stream:
		return pipe.XLen(ctx, key)
	}
	return pipe.HLen(ctx, key)
}

func (s *schedule) request(p *simPart, c *simCall) *request {
	limiter := Limiter{namespace: "sim"}
	r := request{takes: make([]Take, len(c.ns)), keys: make([]string, len(c.ns)), count: c.count, share: s.ahead(p, c) > 0}
	for i, n := range s.ns(p, c) {
		r.takes[i] = Take{Limit: p.limits[i], Caller: "k", Key: "k", N: n}
		r.keys[i] = limiter.key(&r.takes[i])
	}
	return &r
}

// story is what a policy's model says about a schedule up to a call.
func (s *schedule) story(p *simPart, last int) string {
	var out strings.Builder
	for _, l := range p.limits {
		fmt.Fprintf(&out, "window %s (a cell %d ms), max %d\n", l.Window, (l.Window.Milliseconds()+59)/60, l.Max)
	}
	for i := range s.calls[:last+1] {
		c := &s.calls[i]
		fmt.Fprintf(&out, "call %d at %+d ms: take %v, count it %v; %s: %+v\n", i, c.clock-simStart, s.ns(p, c), c.count, p.name, p.want[i])
	}
	return out.String()
}
