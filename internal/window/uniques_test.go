package window_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/unique"
	"tallyroll/internal/window"
)

// cameAt puts visitors of a counter into the unique cells of a moment, as a commit of their hits does.
func (r *rig) cameAt(counter string, at time.Time, who ...string) {
	r.t.Helper()
	for _, tier := range layout.UniqueTiers {
		r.add(uniqueKey(counter, tier, at), who...)
	}
}

func (r *rig) add(key string, who ...string) {
	r.t.Helper()
	args := make([]any, len(who))
	for i, w := range who {
		args[i] = unique.Of([]byte(w)).Argument()
	}
	require.NoError(r.t, r.client.PFAdd(r.t.Context(), key, args...).Err())
}

func uniqueKey(counter string, tier window.Tier, at time.Time) string {
	shard := layout.ShardOf(window.HashCounter([]byte(counter)))
	return fmt.Sprintf("test:{%d}:u:%s:%d:%s", shard, window.FormatDuration(tier.Cell), at.UnixMilli()/tier.Cell.Milliseconds(), counter)
}

// half past ten and two minutes of today: of an hour that ends then, cells of 5m are cut at its beginning.
func uniqueNow() time.Time {
	return time.Now().UTC().Truncate(24 * time.Hour).Add(10*time.Hour + 32*time.Minute)
}

func (r *rig) uniques(now time.Time, questions ...window.Question) (out window.Answers, err error) {
	r.at(now, func() { out, err = r.reader.Uniques(r.t.Context(), questions) })
	return out, err
}

// uniquesOfWindows: of the cells that a window cuts, those who came are in Upper alone.
func uniquesOfWindows(t *testing.T, r *rig) {
	now := uniqueNow()
	r.shardsOf("HITS", cursorAt(1, now))
	r.cameAt("a", now.Add(-time.Minute), "ann")
	r.cameAt("a", now.Add(-20*time.Minute), "bob", "ann")
	r.cameAt("a", now.Add(-58*time.Minute), "cid") // 9:34, in the cell that the hour cuts at 9:32
	r.cameAt("a", now.Add(-61*time.Minute), "dan") // 9:31, in that cell, too
	r.cameAt("a", now.Add(-5*time.Hour), "eve")
	r.cameAt("a", now.Add(-24*time.Hour+9*time.Minute), "fay")  // 10:41, in the hour that the day cuts
	r.cameAt("a", now.Add(-24*time.Hour-20*time.Minute), "guy") // 10:12
	r.cameAt("a", now.Add(-40*time.Hour), "hal")
	r.cameAt("b", now.Add(-time.Minute), "ann")
	ask := func(counter string, span window.Span) window.Answer {
		t.Helper()
		found, err := r.uniques(now, window.Question{Counter: counter, Span: span})
		require.NoError(t, err)
		if found.AsOf != now.UnixMilli() || !found.Answers[0].Complete {
			t.Errorf("as of %d, complete %v; want %d, true", found.AsOf, found.Answers[0].Complete, now.UnixMilli())
		}
		return found.Answers[0]
	}
	for _, c := range []struct {
		why     string
		counter string
		span    window.Span
		want    window.Estimate
	}{
		{"an hour", "a", window.Last(time.Hour), window.Estimate{Total: 3, Lower: 2, Upper: 4}},    // 2 and 3/5 of 2
		{"a day", "a", window.Last(24 * time.Hour), window.Estimate{Total: 6, Lower: 5, Upper: 7}}, // 5 and 28/60 of 2
		{"three days", "a", window.Last(72 * time.Hour), window.Estimate{Total: 8, Lower: 8, Upper: 8}},
		{"a minute", "a", window.Last(time.Minute), window.Estimate{Total: 1, Lower: 0, Upper: 1}}, // 1/2 of 1
		{"another counter", "b", window.Last(time.Hour), window.Estimate{Total: 1, Lower: 1, Upper: 1}},
		{"no counter", "c", window.Last(24 * time.Hour), window.Estimate{}},
		{"a past range", "a", window.Between(now.Add(-57*time.Minute).UnixMilli(), now.Add(-17*time.Minute).UnixMilli()), window.Estimate{Total: 2, Lower: 2, Upper: 2}},
		{"whole cells of the past", "a", window.Between(now.Add(-62*time.Minute).UnixMilli(), now.Add(-57*time.Minute).UnixMilli()), window.Estimate{Total: 2, Lower: 2, Upper: 2}},
		{"yesterday", "a", window.Between(now.Truncate(24*time.Hour).Add(-24*time.Hour).UnixMilli(), now.Truncate(24*time.Hour).UnixMilli()), window.Estimate{Total: 2, Lower: 2, Upper: 2}},
	} {
		if got := ask(c.counter, c.span); got.Estimate != c.want {
			t.Errorf("%s: %+v, want %+v", c.why, got.Estimate, c.want)
		}
	}
	all, err := r.uniques(now, window.Question{Counter: "a", Span: window.Last(time.Hour)}, window.Question{Counter: "b", Span: window.Last(time.Hour)}, window.Question{Counter: "a", Span: window.Last(24 * time.Hour)})
	if err != nil || all.Answers[0].Upper != 4 || all.Answers[1].Upper != 1 || all.Answers[2].Upper != 7 {
		t.Errorf("together: %+v, %v", all.Answers, err)
	}
	var bad *window.QuestionError
	if _, err := r.uniques(now, window.Question{Counter: "a", Span: window.Last(time.Hour)}, window.Question{Counter: "a", Span: window.Last(33 * 24 * time.Hour)}); !errors.As(err, &bad) || bad.Index != 1 {
		t.Errorf("beyond the tiers: %v", err)
	}
}

// uniquesStepByStep: each step has the union of its cells, and bounds.
func uniquesStepByStep(t *testing.T, r *rig) {
	now := uniqueNow()
	r.shardsOf("HITS", cursorAt(1, now))
	r.cameAt("a", now.Add(-time.Minute), "ann")
	r.cameAt("a", now.Add(-13*time.Minute), "bob", "ann")
	r.cameAt("a", now.Add(-11*time.Minute), "cid", "bob")
	r.cameAt("b", now.Add(-11*time.Minute), "cid")
	series := func(step time.Duration, steps window.Steps, from, to int64, counters ...string) []window.Series {
		t.Helper()
		var questions []window.SeriesQuestion
		for _, c := range counters {
			questions = append(questions, window.SeriesQuestion{Counter: c, Span: window.Between(from, to), Step: step, Steps: steps, Reach: window.WhileHeldIfFitting})
		}
		var out []window.Series
		var err error
		r.at(now, func() { out, err = r.reader.UniqueSeries(t.Context(), questions) })
		require.NoError(t, err)
		return out
	}
	from := now.Add(-17 * time.Minute).UnixMilli() // 10:15
	got := series(0, nil, from, window.Now, "a", "b")
	if got[0].Step != 5*time.Minute || got[0].Range.From != from || !slices.Equal(got[0].Counts, []int64{2, 2, 0, 1}) || !slices.Equal(got[1].Counts, []int64{0, 1, 0, 0}) {
		t.Errorf("cells: %+v", got)
	}
	if !slices.Equal(got[0].Bounds, [][2]int64{{2, 2}, {2, 2}, {0, 0}, {1, 1}}) || !got[0].Complete || got[0].Finished() != 3 {
		t.Errorf("bounds: %+v, %d finished", got[0], got[0].Finished())
	}
	if got := series(10*time.Minute, nil, from, window.Now, "a")[0]; got.Step != 10*time.Minute || !slices.Equal(got.Counts, []int64{3, 1}) {
		t.Errorf("a union of two cells: %+v", got)
	}
	// Steps that cut cells share them: the bounds say how.
	cut := series(0, everyTwelveMinutes{}, from, window.Now, "a")[0]
	if len(cut.Counts) != 2 || cut.Bounds[0] != [2]int64{2, 3} || cut.Bounds[1] != [2]int64{1, 3} || cut.Counts[1] > 2 {
		t.Errorf("steps that cut cells: %+v", cut)
	}
}

// everyTwelveMinutes are steps from each quarter of the hour on that no cell of 5m has.
type everyTwelveMinutes struct{}

func (everyTwelveMinutes) String() string { return "12m" }

func (everyTwelveMinutes) At(milli int64) window.Range {
	const length = 12 * 60_000
	from := milli - milli%length
	return window.Range{From: from, To: from + length}
}

// uniquesInOneTrip: cursors and cells come together, however many counters there are.
func uniquesInOneTrip(t *testing.T, r *rig) {
	if _, cluster := r.client.(*redis.ClusterClient); cluster {
		t.Skip("nodes are asked side by side: the trips of one are counted")
	}
	now := time.Now()
	r.shardsOf("HITS", cursorAt(1, now))
	reader := window.NewReader(r.store)
	require.NoError(t, errOf(reader.Look(t.Context())))
	var trips atomic.Int64
	r.client.AddHook(countTrips{&trips})
	var questions []window.Question
	for i := range 20 {
		questions = append(questions, window.Question{Counter: fmt.Sprint(i), Span: window.Last(time.Hour)}, window.Question{Counter: fmt.Sprint(i), Span: window.Last(24 * time.Hour)})
	}
	if _, err := reader.Uniques(t.Context(), questions); err != nil || trips.Load() != 1 {
		t.Errorf("%d trips, %v; want 1", trips.Load(), err)
	}
	reader.MaxUniqueCells = 10
	var much *window.TooMuchError
	if _, err := reader.Uniques(t.Context(), questions); !errors.As(err, &much) || much.What != window.UniqueCells || much.Max != 10 || trips.Load() != 1 {
		t.Errorf("too many cells: %v after %d trips", err, trips.Load())
	}
}

// foreignUniquesAreNamed: Redis does not say which key of a union is none of Tallyroll's.
func foreignUniquesAreNamed(t *testing.T, r *rig) {
	now := uniqueNow()
	r.shardsOf("HITS", cursorAt(1, now))
	r.cameAt("a", now.Add(-20*time.Minute), "ann")
	key := uniqueKey("a", layout.UniqueTiers[0], now.Add(-40*time.Minute))
	for _, put := range []func() error{
		func() error { return r.client.Set(t.Context(), key, "something", 0).Err() },
		func() error { return r.client.HSet(t.Context(), key, "a", "b").Err() },
	} {
		require.NoError(t, errors.Join(r.client.Del(t.Context(), key).Err(), put()))
		_, err := r.uniques(now, window.Question{Counter: "b", Span: window.Last(time.Hour)}, window.Question{Counter: "a", Span: window.Last(time.Hour)})
		var bad *window.QuestionError
		var foreign *window.ForeignError
		if !errors.As(err, &bad) || bad.Index != 1 || !errors.As(err, &foreign) || foreign.Key != key {
			t.Errorf("%v; want question 1 and key %s", err, key)
		}
	}
	// While Redis does not say which, no key is named: it could be the wrong one.
	r.client.AddHook(failSinglePFCount{})
	_, err := r.uniques(now, window.Question{Counter: "a", Span: window.Last(time.Hour)})
	if window.IsForeign(err) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v; want no key and the error of Redis", err)
	}
}

// failSinglePFCount fails each PFCOUNT of a single key that is not in a pipeline.
type failSinglePFCount struct{ redis.Hook }

func (failSinglePFCount) DialHook(next redis.DialHook) redis.DialHook { return next }

func (failSinglePFCount) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (failSinglePFCount) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "pfcount" && len(cmd.Args()) == 2 {
			cmd.SetErr(context.DeadlineExceeded)
			return context.DeadlineExceeded
		}
		return next(ctx, cmd)
	}
}

// uniquesOfAClockAhead: hits that are dated after now are in the last cell, so that one is in doubt.
func uniquesOfAClockAhead(t *testing.T, r *rig) {
	now := uniqueNow()
	r.shardsOf("HITS", cursorAt(1, now.Add(time.Minute)))
	r.cameAt("a", now.Add(-20*time.Minute), "bob")
	r.cameAt("a", now.Add(-time.Minute), "ann")
	r.cameAt("a", now.Add(30*time.Second), "zoe")
	found, err := r.uniques(now, window.Question{Counter: "a", Span: window.Last(time.Hour)})
	require.NoError(t, err)
	if got := found.Answers[0]; got.Lower != 1 || got.Upper != 3 || got.Total != 2 { // 2 of the 3 minutes that the last cell can hold
		t.Errorf("%+v", got)
	}
}

// uniquesAreAsCompleteAsTotals: they rest on the same cursors.
func uniquesAreAsCompleteAsTotals(t *testing.T, r *rig) {
	now := uniqueNow()
	cursor := cursorAt(1, now.Add(-20*time.Second))
	cursor.IncompleteBefore = now.Add(-90 * time.Minute).UnixMilli()
	r.shardsOf("HITS", cursor)
	for length, want := range map[time.Duration]bool{time.Hour: true, 2 * time.Hour: false} {
		question := window.Question{Counter: "a", Span: window.Last(length)}
		uniques, err := r.uniques(now, question)
		require.NoError(t, err)
		totals, err := r.answer(now, question)
		require.NoError(t, err)
		u, total := uniques.Answers[0], totals.Answers[0]
		if u.Complete != want || u.Complete != total.Complete || u.Range != total.Range || u.CountingSince != total.CountingSince || uniques.AsOf != totals.AsOf || !u.Range.Outruns(uniques.AsOf) {
			t.Errorf("%v: %+v, and the total %+v", length, u, total)
		}
	}
}
