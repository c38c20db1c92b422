package limit

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// step is one call in a case: by default a take.
type step struct {
	at    int64 // ms from the beginning
	n     int64
	look  bool
	reset bool

	refused   bool
	remaining int64
	retry     int64 // ms, of log and stream
	cells     int64 // ms, of cells and the ring: the oldest cell leaves evenly, over 1 s
}

// The limit of these cases is 5 in a minute. Every wait that is told is tried: the take fits when it is
// over, and not a millisecond before.
var policyCases = []struct {
	name  string
	steps []step
}{
	{"up to max and not beyond", []step{
		{n: 1, remaining: 4}, {n: 1, remaining: 3}, {n: 1, remaining: 2}, {n: 1, remaining: 1}, {n: 1, remaining: 0},
		{n: 1, refused: true, retry: 60_000, cells: 60_200},
		{at: 59_999, n: 1, refused: true, retry: 1, cells: 201},
		{at: 61_000, n: 5, remaining: 0},
	}},
	{"weights", []step{
		{n: 3, remaining: 2}, {n: 3, refused: true, remaining: 2, retry: 60_000, cells: 60_334}, {n: 2, remaining: 0},
	}},
	{"the oldest leave first", []step{
		{n: 2, remaining: 3}, {at: 10_000, n: 3, remaining: 0},
		{at: 10_000, n: 1, refused: true, retry: 50_000, cells: 50_500},
		{at: 10_000, n: 2, refused: true, retry: 50_000, cells: 51_000},
		{at: 10_000, n: 3, refused: true, retry: 60_000, cells: 60_334},
		{at: 10_000, n: 5, refused: true, retry: 60_000, cells: 61_000},
	}},
	{"none asked for", []step{
		{n: 0, remaining: 5}, {n: 5, remaining: 0}, {n: 0, remaining: 0}, {n: 1, refused: true, retry: 60_000, cells: 60_200},
	}},
	{"given back", []step{
		{n: 5, remaining: 0}, {at: 1000, n: -2, remaining: 2}, {at: 1000, n: 3, refused: true, remaining: 2, retry: 59_000, cells: 59_334},
		{at: 1000, n: 2, remaining: 0},
	}},
	{"more given back than there is", []step{
		{n: 3, remaining: 2}, {n: -100, remaining: 5}, {n: -1, remaining: 5}, {n: math.MinInt64, remaining: 5}, {n: 5, remaining: 0},
		{n: 1, refused: true, retry: 60_000, cells: 60_200}, {n: math.MinInt64, remaining: 5},
	}},
	{"given back from nothing", []step{{n: -1, remaining: 5}, {n: 5, remaining: 0}, {n: 1, refused: true, retry: 60_000, cells: 60_200}}},
	{"the newest are given back", []step{
		{n: 2, remaining: 3}, {at: 10_000, n: 3, remaining: 0}, {at: 20_000, n: -3, remaining: 3}, {at: 20_000, n: 3, remaining: 0},
		{at: 20_000, n: 2, refused: true, retry: 40_000, cells: 41_000},
	}},
	{"a part of a take is given back", []step{
		{n: 1, remaining: 4}, {at: 10_000, n: 4, remaining: 0}, {at: 20_000, n: -2, remaining: 2}, {at: 30_000, n: 2, remaining: 0},
		{at: 30_000, n: 4, refused: true, retry: 60_000, cells: 60_500},
	}},
	{"reset", []step{{n: 5, remaining: 0}, {reset: true}, {n: 5, remaining: 0}, {reset: true}, {reset: true}, {n: 1, remaining: 4}}},
	{"a look counts nothing", []step{
		{n: 3, look: true, remaining: 5}, {n: 5, look: true, remaining: 5}, {n: 5, remaining: 0},
		{n: 1, look: true, refused: true, retry: 60_000, cells: 60_200}, {n: -3, look: true, remaining: 0}, {n: 0, look: true, remaining: 0},
	}},
	{"the clock goes back", []step{
		{at: 30_000, n: 5, remaining: 0}, {at: 10_000, n: 1, refused: true, retry: 80_000, cells: 80_200},
	}},
	{"the clock goes back by more than a window", []step{
		{at: 100_000, n: 5, remaining: 0}, {at: 40_000, n: 1, refused: true, retry: 120_000, cells: 120_200},
		{at: 39_999, n: 4, remaining: 1},
	}},
	{"after a long time", []step{{n: 5, remaining: 0}, {at: 366 * 24 * 3_600_000, n: 5, remaining: 0}}},
}

func testCases(t *testing.T, policy Policy, fresh func(*testing.T) *world) {
	for _, c := range policyCases {
		t.Run(c.name, func(t *testing.T) {
			w, l := fresh(t), adhoc(t, time.Minute, 5, policy)
			for i, s := range c.steps {
				w.at(s.at)
				w.step(i, s, l)
			}
		})
	}
}

// step takes a step of a case and compares.
func (w *world) step(i int, s step, l *Limit) {
	w.t.Helper()
	take := takeOf(l, "alice", s.n)
	if s.reset {
		err := w.limiter.Reset(w.t.Context(), take)
		if err != nil && w.client != nil {
			w.t.Fatal(err)
		}
		return
	}
	ask := w.take
	if s.look {
		ask = w.look
	}
	a := ask(take)
	d := a.Decisions[0]
	retry := s.retry
	if l.Policy == Cells {
		retry = s.cells
	}
	if a.Allowed == s.refused || d.Allowed != a.Allowed || d.Remaining != s.remaining || d.RetryAfter.Milliseconds() != retry {
		w.t.Fatalf("step %d (n %d): %+v, want allowed %v, remaining %d, retry after %d ms", i, s.n, d, !s.refused, s.remaining, retry)
	}
	if l.Policy != Cells && (!d.Certain || d.Lower != d.Upper || d.Lower != l.Max-s.remaining) {
		w.t.Errorf("step %d: %+v: the policy is exact", i, d)
	}
	if s.refused {
		w.retry(take, s.at, retry)
	}
}

// retry looks a millisecond before a take is to fit, and when it is.
func (w *world) retry(take Take, at, after int64) {
	w.t.Helper()
	w.at(at + after - 1)
	require.False(w.t, w.look(take).Allowed, "n %d is allowed less than %d ms after %d", take.N, after, at)
	w.at(at + after)
	require.True(w.t, w.look(take).Allowed, "n %d is not allowed %d ms after %d", take.N, after, at)
	w.at(at)
}

// A hit at t counts until t + window - 1 ms, and not at t + window. Cells may count it for up to a cell
// longer, and never shorter.
func testEdges(t *testing.T, policy Policy, fresh func(*testing.T) *world) {
	for _, length := range []time.Duration{time.Second, time.Minute, 61 * time.Second, MaxWindow} {
		ms := length.Milliseconds()
		l := adhoc(t, length, 3, policy)
		cell := (ms + 59) / 60
		for _, begin := range []int64{0, 1, cell - 1, cell, 123_457} {
			w := fresh(t)
			w.at(begin)
			w.take(takeOf(l, "alice", 3))
			w.at(begin + ms - 1)
			if d := w.look(takeOf(l, "alice", 3)).Decisions[0]; d.Allowed || d.Upper != 3 {
				t.Errorf("%s, %d: a millisecond before the hits leave: %+v", length, begin, d)
			}
			w.at(begin + ms)
			if d := w.look(takeOf(l, "alice", 3)).Decisions[0]; policy != Cells && (!d.Allowed || d.Upper != 0) || d.Lower != 0 {
				t.Errorf("%s, %d: when the hits have left: %+v", length, begin, d)
			}
			w.at(begin + ms + cell)
			if d := w.look(takeOf(l, "alice", 3)).Decisions[0]; !d.Allowed || d.Upper != 0 {
				t.Errorf("%s, %d: a cell after the hits have left: %+v", length, begin, d)
			}
		}
	}
}

// Cells say when they do not know: the hits of the oldest cell decide, and some of them may have left.
func TestCellsSayWhenTheyDoNotKnow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, backends[2].start(t), "certain")
	l := adhoc(t, time.Minute, 5, Cells)
	w.at(500)
	w.take(takeOf(l, "alice", 4))
	w.at(2000)
	w.take(takeOf(l, "alice", 1))
	for _, c := range []struct {
		at, n            int64
		allowed, certain bool
		lower, upper     int64
		remaining        int64
	}{
		{59_999, 1, false, true, 5, 5, 0}, // all are inside
		{60_100, 1, false, false, 1, 5, 0},
		{60_300, 1, true, false, 1, 5, 1}, // 1 + 0.7 × 4 is rounded up
		{60_300, 5, false, true, 1, 5, 1}, // not even the fewest leave room
		{60_300, 0, true, true, 1, 5, 1},
		{61_000, 4, true, true, 1, 1, 4},
	} {
		w.at(c.at)
		d := w.look(takeOf(l, "alice", c.n)).Decisions[0]
		if d.Allowed != c.allowed || d.Certain != c.certain || d.Lower != c.lower || d.Upper != c.upper || d.Remaining != c.remaining {
			t.Errorf("at %d, n %d: %+v, want %+v", c.at, c.n, d, c)
		}
	}
}

// A reload can make max smaller than what was allowed before.
func TestMaxBecomesSmaller(t *testing.T) {
	t.Parallel()
	client := backends[2].start(t)
	for _, policy := range Policies {
		w, l := newWorld(t, client, "smaller"), adhoc(t, time.Minute, 5, policy)
		w.take(takeOf(l, "alice", 5))
		smaller := *l
		smaller.Max = 2
		d := w.take(takeOf(&smaller, "alice", 1)).Decisions[0]
		if d.Allowed || d.Remaining != 0 {
			t.Errorf("%s: %+v", policy, d)
		}
		w.retry(takeOf(&smaller, "alice", 1), 0, d.RetryAfter.Milliseconds())
	}
}
