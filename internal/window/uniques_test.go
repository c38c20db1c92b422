package window_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/human"
	"tallyroll/internal/unique"
	"tallyroll/internal/window"
	"tallyroll/internal/window/cluster"
	"tallyroll/internal/window/read"
)

// cameAt puts visitors of a counter into the unique cells of a moment, as a commit of their hits does.
func (r *rig) cameAt(counter string, at time.Time, who ...string) {
	r.t.Helper()
	args := make([]any, len(who))
	for i, w := range who {
		args[i] = unique.Of([]byte(w)).Argument()
	}
	for _, tier := range layout.UniqueTiers {
		require.NoError(r.t, r.client.PFAdd(r.t.Context(), uniqueKey(counter, tier, at), args...).Err())
	}
}

func uniqueKey(counter string, tier window.Tier, at time.Time) string {
	cell := at.UnixMilli() / tier.Cell.Milliseconds()
	return fmt.Sprintf("test:{%d}:u:%s:%d:%s", shardOf(counter), human.FormatDuration(tier.Cell), cell, counter)
}

// half past ten and two minutes of today: of an hour that ends then, cells of 5m are cut at its beginning.
func uniqueNow() time.Time {
	return time.Now().UTC().Truncate(24 * time.Hour).Add(10*time.Hour + 32*time.Minute)
}

func (r *rig) uniques(now time.Time, questions ...window.Question) (out window.Answers, err error) {
	r.at(now, func() { out, err = r.reader.Uniques(r.t.Context(), questions) })
	return out, err
}

// Of the cells that a window cuts, those who came are in Upper alone.
func (r *rig) TestUniquesOfWindows(t *testing.T) {
	now := uniqueNow()
	day := now.Truncate(24 * time.Hour)
	r.write("HITS", cursorAt(1, now))
	r.cameAt("a", now.Add(-time.Minute), "ann")
	r.cameAt("a", now.Add(-20*time.Minute), "bob", "ann")
	r.cameAt("a", now.Add(-58*time.Minute), "cid") // 9:34, in the cell that the hour cuts at 9:32
	r.cameAt("a", now.Add(-61*time.Minute), "dan") // 9:31, in that cell, too
	r.cameAt("a", now.Add(-5*time.Hour), "eve")
	r.cameAt("a", now.Add(-24*time.Hour+9*time.Minute), "fay")  // 10:41, in the hour that the day cuts
	r.cameAt("a", now.Add(-24*time.Hour-20*time.Minute), "guy") // 10:12
	r.cameAt("a", now.Add(-40*time.Hour), "hal")
	r.cameAt("b", now.Add(-time.Minute), "ann")
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
	together, err := r.uniques(now, all...)
	require.NoError(t, err)
	for i, c := range cases {
		alone, err := r.uniques(now, all[i])
		require.NoError(t, err)
		require.Equal(t, window.Estimate{Total: c.total, Lower: c.lower, Upper: c.upper}, alone.Answers[0].Estimate, c.why)
		require.Equal(t, alone.Answers[0], together.Answers[i], c.why)
		require.True(t, alone.Answers[0].Complete, c.why)
		require.Equal(t, now.UnixMilli(), alone.AsOf, c.why)
	}
	var bad *window.QuestionError
	_, err = r.uniques(now, all[0], window.Question{Counter: "a", Span: window.Last(33 * 24 * time.Hour)})
	if !errors.As(err, &bad) || bad.Index != 1 {
		t.Errorf("beyond the tiers: %v", err)
	}
}

// Each step has the visitors of its cells, and bounds if it cuts one.
func (r *rig) TestUniquesOfEachStep(t *testing.T) {
	now := uniqueNow()
	r.write("HITS", cursorAt(1, now))
	r.cameAt("a", now.Add(-time.Minute), "ann")
	r.cameAt("a", now.Add(-13*time.Minute), "bob", "ann")
	r.cameAt("a", now.Add(-11*time.Minute), "cid", "bob")
	r.cameAt("b", now.Add(-11*time.Minute), "cid")
	from := now.Add(-17 * time.Minute).UnixMilli() // 10:15
	series := func(steps window.Steps) (a, b window.Series) {
		t.Helper()
		q := window.SeriesQuestion{Counter: "a", Span: window.Between(from, window.Now), Steps: steps}
		q.Reach = window.WhileHeldIfFitting
		other := q
		other.Counter = "b"
		r.at(now, func() {
			found, err := r.reader.UniqueSeries(t.Context(), []window.SeriesQuestion{q, other})
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
	r.write("HITS", cursorAt(1, time.Now()))
	reader := read.NewReader(r.store)
	require.NoError(t, errOf(reader.Look(t.Context())))
	trips := r.countTrips()
	var questions []window.Question
	for i := range 40 {
		span := window.Last(time.Hour * time.Duration(1+i%2*23))
		questions = append(questions, window.Question{Counter: fmt.Sprint(i / 2), Span: span})
	}
	require.NoError(t, errOf(reader.Uniques(t.Context(), questions)))
	require.EqualValues(t, 1, trips())
	reader.MaxUniqueCells = 10
	var much *window.TooMuchError
	require.ErrorAs(t, errOf(reader.Uniques(t.Context(), questions)), &much)
	require.Zero(t, trips())
}

// Redis does not say which key of a union is none of Tallyroll's.
func (r *rig) TestForeignUniqueCellIsNamed(t *testing.T) {
	now := uniqueNow()
	r.write("HITS", cursorAt(1, now))
	r.cameAt("a", now.Add(-20*time.Minute), "ann")
	hour := func(counter string) window.Question {
		return window.Question{Counter: counter, Span: window.Last(time.Hour)}
	}
	key := uniqueKey("a", layout.UniqueTiers[0], now.Add(-40*time.Minute))
	for _, put := range []func() error{
		func() error { return r.client.Set(t.Context(), key, "something", 0).Err() },
		func() error { return r.client.HSet(t.Context(), key, "a", "b").Err() },
	} {
		require.NoError(t, errors.Join(r.client.Del(t.Context(), key).Err(), put()))
		err := errOf(r.uniques(now, hour("b"), hour("a")))
		var bad *window.QuestionError
		require.ErrorAs(t, err, &bad)
		require.Equal(t, 1, bad.Index)
		mustName(t, key, err)
	}
	// While Redis does not say which, no key is named: it could be the wrong one.
	r.client.AddHook(hook(func(_ context.Context, cmds []redis.Cmder, send func([]redis.Cmder) error) error {
		if len(cmds) == 1 && cmds[0].Name() == "pfcount" && len(cmds[0].Args()) == 2 {
			return failAll(cmds, context.DeadlineExceeded)
		}
		return send(cmds)
	}))
	err := errOf(r.uniques(now, hour("a")))
	if cluster.IsForeign(err) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v; want no key and the error of Redis", err)
	}
}

// Hits that are dated after now are in the last cell, so that one is uncertain.
func (r *rig) TestUniquesOfAClockAhead(t *testing.T) {
	now := uniqueNow()
	r.write("HITS", cursorAt(1, now.Add(time.Minute)))
	r.cameAt("a", now.Add(-20*time.Minute), "bob")
	r.cameAt("a", now.Add(-time.Minute), "ann")
	r.cameAt("a", now.Add(30*time.Second), "zoe")
	found, err := r.uniques(now, window.Question{Counter: "a", Span: window.Last(time.Hour)})
	require.NoError(t, err)
	want := window.Estimate{Total: 2, Lower: 1, Upper: 3} // 2 of the 3 minutes that the last cell can hold
	require.Equal(t, want, found.Answers[0].Estimate)
}

// They rest on the same cursors.
func (r *rig) TestUniquesAreAsCompleteAsTotals(t *testing.T) {
	now := uniqueNow()
	cursor := cursorAt(1, now.Add(-20*time.Second))
	cursor.IncompleteBefore = now.Add(-90 * time.Minute).UnixMilli()
	r.write("HITS", cursor)
	for length, want := range map[time.Duration]bool{time.Hour: true, 2 * time.Hour: false} {
		question := window.Question{Counter: "a", Span: window.Last(length)}
		uniques, err := r.uniques(now, question)
		require.NoError(t, err)
		totals, err := r.answer(now, question)
		require.NoError(t, err)
		u := uniques.Answers[0]
		require.Equal(t, want, u.Complete, length)
		require.Equal(t, totals.AsOf, uniques.AsOf)
		require.True(t, u.Range.Outruns(uniques.AsOf))
		u.Tier = totals.Answers[0].Tier
		require.Equal(t, totals.Answers[0], u) // both have no hits
	}
}
