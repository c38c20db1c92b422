package limit

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/cases"
)

// testCases plays testdata/policies.txt with every policy, and with the ring.
func testCases(t *testing.T, fresh func(*testing.T) *world) {
	cases.Check(t, "policies", func(t *testing.T, _, given string) string {
		steps := strings.Split(given, "\n")
		play := func(w *world, policy Policy) (out []stepResult) {
			l := adhoc(t, time.Minute, 5, policy)
			for _, step := range steps {
				out = append(out, w.step(step, l))
			}
			return out
		}
		exact, cells := play(fresh(t), Log), play(fresh(t), Cells)
		require.Equal(t, exact, play(fresh(t), Stream), "log and stream")
		require.Equal(t, cells, play(newWorld(t, nil, "ring"), Cells), "cells and the ring")
		for i, e := range exact {
			require.Equal(t, e.text, cells[i].text, "log and cells: %s", steps[i])
			if steps[i] += ": " + e.text; e.wait > 0 {
				steps[i] += fmt.Sprintf(", fits after %d ms, with cells after %d ms", e.wait, cells[i].wait)
			}
		}
		return strings.Join(steps, "\n")
	})
}

// stepResult is what comes of a step. wait is that of a refusal, in milliseconds.
type stepResult struct {
	text string
	wait int64
}

// step does what a line says, such as "at 1000 take 1".
func (w *world) step(line string, l *Limit) stepResult {
	w.t.Helper()
	words := strings.Fields(line)
	if words[0] == "at" {
		w.at(mustInt(w.t, words[1]))
		words = words[2:]
	}
	if words[0] == "reset" {
		err := w.limiter.Reset(w.t.Context(), takeOf(l, "alice", 0))
		if w.client != nil { // a ring forgets, and tells that Redis does not
			require.NoError(w.t, err)
		}
		return stepResult{"done", 0}
	}
	take, ask := takeOf(l, "alice", mustInt(w.t, words[1])), w.take
	if words[0] == "look" {
		ask = w.look
	}
	a := ask(take)
	d := a.Decisions[0]
	require.Equal(w.t, a.Allowed, d.Allowed, line)
	if exact := d.Certain && d.Lower == d.Upper && d.Lower == l.Max-d.Remaining; l.Policy != Cells && !exact {
		w.t.Errorf("%s: %+v: the policy is exact", line, d)
	}
	if a.Allowed {
		require.Zero(w.t, d.RetryAfter, line)
		return stepResult{fmt.Sprint("allowed, ", d.Remaining, " left"), 0}
	}
	wait := d.RetryAfter.Milliseconds()
	w.retry(take, w.clock-worldStart, wait)
	return stepResult{fmt.Sprint("refused, ", d.Remaining, " left"), wait}
}

func mustInt(t *testing.T, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	require.NoError(t, err)
	return n
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
func TestCellsAreUncertainWhileTheirOldestDecides(t *testing.T) {
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
func TestSmallerMaxHoldsAtOnce(t *testing.T) {
	t.Parallel()
	client := backends[2].start(t)
	for _, policy := range rolling() {
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

func TestWithNumbers(t *testing.T) {
	t.Parallel()
	l := &Limit{Name: "a", Window: MinWindow, Max: 5, Policy: Log, Fail: FailOpen}
	out, err := l.WithNumbers(MaxWindow, 7)
	require.NoError(t, err)
	require.Equal(t, &Limit{Name: "a", Window: MaxWindow, Max: 7, Policy: Log, Fail: FailOpen, Mode: out.Mode}, out)
	require.EqualValues(t, 5, l.Max)
	var bad *FieldError
	for _, most := range []int64{-1, MaxExactHits + 1} {
		_, err := l.WithNumbers(MinWindow, most)
		require.ErrorAs(t, err, &bad)
		require.Equal(t, "max", bad.Field)
	}
}
