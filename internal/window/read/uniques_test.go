package read_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/unique"
	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
	"tallyroll/tests/stack"
	"tallyroll/tests/windowtest"
)

// Of the cells that a window cuts, those who came are in Upper alone.
func (r *rig) TestUniquesOfWindows(t *testing.T) {
	now := windowtest.UniqueNow()
	day := now.Truncate(24 * time.Hour)
	r.Write("HITS", windowtest.CursorAt(1, now))
	r.AddVisitors("a", now.Add(-time.Minute), "ann")
	r.AddVisitors("a", now.Add(-20*time.Minute), "bob", "ann")
	r.AddVisitors("a", now.Add(-58*time.Minute), "cid") // 9:34, in the cell that the hour cuts at 9:32
	r.AddVisitors("a", now.Add(-61*time.Minute), "dan") // 9:31, in that cell, too
	r.AddVisitors("a", now.Add(-5*time.Hour), "eve")
	r.AddVisitors("a", now.Add(-24*time.Hour+9*time.Minute), "fay")  // 10:41, in the hour that the day cuts
	r.AddVisitors("a", now.Add(-24*time.Hour-20*time.Minute), "guy") // 10:12
	r.AddVisitors("a", now.Add(-40*time.Hour), "hal")
	r.AddVisitors("b", now.Add(-time.Minute), "ann")
	between := func(from, to time.Time) window.Span { return window.Between(from.UnixMilli(), to.UnixMilli()) }
	cases := []struct {
		why, counter        string
		span                window.Span
		total, lower, upper int64
	}{
		{"an hour", "a", window.Last(time.Hour), 3, 2, 4},    // 2 and 3/5 of 2
		{"a day", "a", window.Last(24 * time.Hour), 6, 5, 7}, // 5 and 28/60 of 2
		{"three days", "a", window.Last(72 * time.Hour), 8, 8, 8},
		{"a minute", "a", window.Last(time.Minute), 1, 0, 1}, // 1/2 of 1
		{"another counter", "b", window.Last(time.Hour), 1, 1, 1},
		{"no counter", "c", window.Last(24 * time.Hour), 0, 0, 0},
		{"a past range", "a", between(now.Add(-57*time.Minute), now.Add(-17*time.Minute)), 2, 2, 2},
		{"whole cells of the past", "a", between(now.Add(-62*time.Minute), now.Add(-57*time.Minute)), 2, 2, 2},
		{"yesterday", "a", between(day.Add(-24*time.Hour), day), 2, 2, 2},
	}
	var all []window.Question
	for _, c := range cases {
		all = append(all, window.Question{Counter: c.counter, Span: c.span})
	}
	together, err := r.Uniques(now, all...)
	require.NoError(t, err)
	for i, c := range cases {
		alone, err := r.Uniques(now, all[i])
		require.NoError(t, err)
		require.Equal(t, window.Estimate{Total: c.total, Lower: c.lower, Upper: c.upper}, alone.Answers[0].Estimate, c.why)
		require.Equal(t, alone.Answers[0], together.Answers[i], c.why)
		require.True(t, alone.Answers[0].Complete, c.why)
		require.Equal(t, now.UnixMilli(), alone.AsOf, c.why)
	}
	var bad *window.QuestionError
	_, err = r.Uniques(now, all[0], window.Question{Counter: "a", Span: window.Last(33 * 24 * time.Hour)})
	if !errors.As(err, &bad) || bad.Index != 1 {
		t.Errorf("beyond the tiers: %v", err)
	}
}

// Each step has the visitors of its cells, and bounds if it cuts one.
func (r *rig) TestUniquesOfEachStep(t *testing.T) {
	now := windowtest.UniqueNow()
	r.Write("HITS", windowtest.CursorAt(1, now))
	r.AddVisitors("a", now.Add(-time.Minute), "ann")
	r.AddVisitors("a", now.Add(-13*time.Minute), "bob", "ann")
	r.AddVisitors("a", now.Add(-11*time.Minute), "cid", "bob")
	r.AddVisitors("b", now.Add(-11*time.Minute), "cid")
	from := now.Add(-17 * time.Minute).UnixMilli() // 10:15
	series := func(steps window.Steps) (a, b window.Series) {
		t.Helper()
		q := window.SeriesQuestion{Counter: "a", Span: window.Between(from, window.Now), Steps: steps}
		q.Reach = window.WhileHeldIfFitting
		other := q
		other.Counter = "b"
		r.At(now, func() {
			found, err := r.Reader.UniqueSeries(t.Context(), []window.SeriesQuestion{q, other})
			require.NoError(t, err)
			a, b = found[0], found[1]
		})
		return a, b
	}
	cells, other := series(nil)
	require.Equal(t, []int64{0, 1, 0, 0}, other.Counts)
	require.Equal(t, []int64{2, 2, 0, 1}, cells.Counts)
	require.Equal(t, [][2]int64{{2, 2}, {2, 2}, {0, 0}, {1, 1}}, cells.Bounds)
	if cells.Step != 5*time.Minute || cells.Range.From != from || !cells.Complete || cells.Finished() != 3 {
		t.Errorf("%+v, %d finished", cells, cells.Finished())
	}
	cut, _ := series(everyTwelveMinutes{})
	require.Equal(t, [][2]int64{{2, 3}, {1, 3}}, cut.Bounds)
	require.LessOrEqual(t, cut.Counts[1], int64(2))
}

// everyTwelveMinutes are steps from each quarter of the hour on that no cell of 5m has.
type everyTwelveMinutes struct{}

func (everyTwelveMinutes) String() string { return "12m" }

func (everyTwelveMinutes) At(milli int64) window.Range {
	const length = 12 * 60_000
	from := milli - milli%length
	return window.Range{From: from, To: from + length}
}

// Cursors and cells come together, however many counters there are.
func (r *rig) TestUniquesTakeOneRoundTrip(t *testing.T) {
	r.Write("HITS", windowtest.CursorAt(1, time.Now()))
	reader := read.NewReader(r.Store)
	require.NoError(t, windowtest.ErrOf(reader.Look(t.Context())))
	trips := r.CountTrips(t)
	var questions []window.Question
	for i := range 40 {
		span := window.Last(time.Hour * time.Duration(1+i%2*23))
		questions = append(questions, window.Question{Counter: fmt.Sprint(i / 2), Span: span})
	}
	require.NoError(t, windowtest.ErrOf(reader.Uniques(t.Context(), questions)))
	require.EqualValues(t, 1, trips())
	reader.MaxUniqueCells = 10
	var much *window.TooMuchError
	require.ErrorAs(t, windowtest.ErrOf(reader.Uniques(t.Context(), questions)), &much)
	require.Zero(t, trips())
}

// Redis does not say which key of a union is none of Tallyroll's.
func (r *rig) TestForeignUniqueCellIsNamed(t *testing.T) {
	now := windowtest.UniqueNow()
	r.Write("HITS", windowtest.CursorAt(1, now))
	r.AddVisitors("a", now.Add(-20*time.Minute), "ann")
	hour := func(counter string) window.Question {
		return window.Question{Counter: counter, Span: window.Last(time.Hour)}
	}
	key := windowtest.UniqueKey("a", layout.UniqueTiers[0], now.Add(-40*time.Minute))
	for _, put := range []func() error{
		func() error { return r.Client.Set(t.Context(), key, "something", 0).Err() },
		func() error { return r.Client.HSet(t.Context(), key, "a", "b").Err() },
	} {
		require.NoError(t, errors.Join(r.Client.Del(t.Context(), key).Err(), put()))
		err := windowtest.ErrOf(r.Uniques(now, hour("b"), hour("a")))
		var bad *window.QuestionError
		require.ErrorAs(t, err, &bad)
		require.Equal(t, 1, bad.Index)
		windowtest.MustName(t, key, err)
	}
	// While Redis does not say which, no key is named: it could be the wrong one.
	r.Client.AddHook(windowtest.Hook(func(_ context.Context, cmds []redis.Cmder, send func([]redis.Cmder) error) error {
		if len(cmds) == 1 && cmds[0].Name() == "pfcount" && len(cmds[0].Args()) == 2 {
			return windowtest.FailAll(cmds, context.DeadlineExceeded)
		}
		return send(cmds)
	}))
	err := windowtest.ErrOf(r.Uniques(now, hour("a")))
	if window.IsForeign(err) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v; want no key and the error of Redis", err)
	}
}

// Hits that are dated after now are in the last cell, so that one is uncertain.
func (r *rig) TestUniquesOfAClockAhead(t *testing.T) {
	now := windowtest.UniqueNow()
	r.Write("HITS", windowtest.CursorAt(1, now.Add(time.Minute)))
	r.AddVisitors("a", now.Add(-20*time.Minute), "bob")
	r.AddVisitors("a", now.Add(-time.Minute), "ann")
	r.AddVisitors("a", now.Add(30*time.Second), "zoe")
	found, err := r.Uniques(now, window.Question{Counter: "a", Span: window.Last(time.Hour)})
	require.NoError(t, err)
	want := window.Estimate{Total: 2, Lower: 1, Upper: 3} // 2 of the 3 minutes that the last cell can hold
	require.Equal(t, want, found.Answers[0].Estimate)
}

// They rest on the same cursors.
func (r *rig) TestUniquesAreAsCompleteAsTotals(t *testing.T) {
	now := windowtest.UniqueNow()
	cursor := windowtest.CursorAt(1, now.Add(-20*time.Second))
	cursor.IncompleteBefore = now.Add(-90 * time.Minute).UnixMilli()
	r.Write("HITS", cursor)
	for length, want := range map[time.Duration]bool{time.Hour: true, 2 * time.Hour: false} {
		question := window.Question{Counter: "a", Span: window.Last(length)}
		uniques, err := r.Uniques(now, question)
		require.NoError(t, err)
		totals, err := r.Answer(now, question)
		require.NoError(t, err)
		u := uniques.Answers[0]
		require.Equal(t, want, u.Complete, length)
		require.Equal(t, totals.AsOf, uniques.AsOf)
		require.True(t, u.Range.Outruns(uniques.AsOf))
		u.Tier = totals.Answers[0].Tier
		require.Equal(t, totals.Answers[0], u) // both have no hits
	}
}

type visit struct {
	at  int64 // Unix milliseconds
	who int32
}

// visitLog is who came to a counter when, in the order of time.
type visitLog struct {
	counter  string
	visitors int
	visits   []visit
}

// logOf draws a month of visits. Most come by day, and some visitors come again and again, soon or days
// later.
func logOf(counter string, visitors int, now time.Time, random *rand.Rand) visitLog {
	const day, reach = 24 * 3600_000, 33 * 24 * 3600_000
	out := visitLog{counter: counter, visitors: visitors}
	begin := now.UnixMilli() - reach
	for who := range visitors {
		at := begin + random.Int64N(reach)
		if random.IntN(3) > 0 { // in the twelve hours around noon
			at = at - at%day + day/4 + random.Int64N(day/2)
		}
		for {
			if at < now.UnixMilli() {
				out.visits = append(out.visits, visit{at, int32(who)})
			}
			if random.IntN(2) == 0 {
				break
			}
			at += int64(math.Exp(random.Float64()*11+9)) % reach // 8 seconds to days
		}
	}
	slices.SortFunc(out.visits, func(a, b visit) int { return cmp.Compare(a.at, b.at) })
	return out
}

// from returns the visits from a moment on.
func (l *visitLog) from(at int64) []visit {
	i, _ := slices.BinarySearchFunc(l.visits, at, func(v visit, at int64) int { return cmp.Compare(v.at, at) })
	return l.visits[i:]
}

// different counts the visitors of a range one by one.
func (l *visitLog) different(r window.Range) int64 {
	seen := make(map[int32]bool)
	for _, v := range l.from(r.From) {
		if v.at >= r.To {
			break
		}
		seen[v.who] = true
	}
	return int64(len(seen))
}

// fill writes the cells of a log as a worker does.
func (l *visitLog) fill(t *testing.T, client redis.UniversalClient, now time.Time) {
	t.Helper()
	arguments := make([]any, l.visitors)
	for who := range arguments {
		arguments[who] = unique.Of(fmt.Appendf(nil, "%s-%d", l.counter, who)).Argument()
	}
	for _, tier := range layout.UniqueTiers {
		pipe := client.Pipeline()
		for left := l.from(now.Add(-2 * tier.Window).UnixMilli()); len(left) > 0; { // earlier cells have expired long since
			cell, args := left[0].at/tier.Cell.Milliseconds(), []any(nil)
			key := windowtest.UniqueKey(l.counter, tier, time.UnixMilli(left[0].at))
			for ; len(left) > 0 && left[0].at/tier.Cell.Milliseconds() == cell && len(args) < 10_000; left = left[1:] {
				args = append(args, arguments[left[0].who])
			}
			pipe.PFAdd(t.Context(), key, args...)
		}
		require.NoError(t, windowtest.ErrOf(pipe.Exec(t.Context())))
	}
}

// truths is how often the truth lay within the bounds.
type truths struct{ windows, below, above int }

func (s *truths) add(got window.Estimate, want int64) {
	s.windows++
	if want < got.Lower {
		s.below++
	}
	if want > got.Upper {
		s.above++
	}
}

func (s *truths) within() float64 { return float64(s.windows-s.below-s.above) / float64(s.windows) }

func (s *truths) String() string {
	return fmt.Sprintf("%d windows: %.1f %% within the bounds (%d below, %d above)",
		s.windows, 100*s.within(), s.below, s.above)
}

// The truth lies within the bounds as often as they say, for large counters and for small ones, and for
// windows that cut no cell, too: there only the error of Redis's estimate counts. UNIQUE_VISITORS=1000000
// draws a log of that many.
func TestUniquesHoldTheTruth(t *testing.T) {
	t.Parallel()
	visitors, windows := stack.Rounds(10_000, 60_000), stack.Rounds(250, 1000)
	if text := os.Getenv("UNIQUE_VISITORS"); text != "" {
		require.NoError(t, windowtest.ErrOf(fmt.Sscan(text, &visitors)))
	}
	random := rand.New(rand.NewPCG(1, 2))
	r := windowtest.NewRig(t, windowtest.Server(t))
	now := time.Date(2026, 11, 24, 10, 32, 17, 0, time.UTC) // that each run draws the same
	r.Write("HITS", windowtest.CursorAt(1, now))
	var logs []visitLog
	for left, i := visitors, 0; left > 0; i++ { // the first has two fifths of all, the next two fifths of the others
		n := max(1, left*2/5)
		logs = append(logs, logOf(fmt.Sprintf("1-%d", i), n, now, random))
		logs[i].fill(t, r.Client, now)
		left -= n
	}
	var rolling, whole, small truths
	ask := func(l *visitLog, from, to time.Time, kind *truths) {
		span := window.Between(from.UnixMilli(), to.UnixMilli())
		found, err := r.Uniques(now, window.Question{Counter: l.counter, Span: span})
		require.NoError(t, err)
		got, want := found.Answers[0].Estimate, l.different(found.Answers[0].Range)
		kind.add(got, want)
		if kind == &rolling && want <= 100 {
			small.add(got, want)
		}
	}
	for i := range windows {
		l := &logs[i%len(logs)]
		if i%2 == 0 {
			l = &logs[i/2%5] // those that most ask about
		}
		minutes := math.Exp(random.Float64() * math.Log(32*24*60)) // of a minute to 32 days
		length := time.Duration(minutes*60) * time.Second
		end := now
		if i%4 == 3 {
			end = now.Add(-time.Duration(random.Int64N(int64(max(1, min(length, 32*24*time.Hour-length))))))
		}
		ask(l, end.Add(-length), end, &rolling)
		// Whole days of the past, or whole hours.
		tier := layout.UniqueTiers[2-i%2]
		last, cells := now.Truncate(tier.Cell), int64(tier.Window/tier.Cell)-1
		from := last.Add(-tier.Cell * time.Duration(1+random.Int64N(cells)))
		to := from.Add(tier.Cell * time.Duration(1+random.Int64N(int64(last.Sub(from)/tier.Cell))))
		ask(l, from, to, &whole)
	}
	for name, s := range map[string]*truths{"rolling": &rolling, "whole cells": &whole, "up to 100 visitors": &small} {
		t.Logf("%d visitors of %d counters, %s: %s", visitors, len(logs), name, s)
		if s.windows < 50 || s.within() < window.UniqueConfidence {
			t.Error("that is not enough")
		}
	}
}
