package read

import (
	"context"
	"errors"
	"fmt"
	"math"

	"tallyroll/internal/window"
	"tallyroll/internal/window/cluster"
	"tallyroll/internal/window/schema"
)

// fetch plans for a moment, and reads once what the plans need. The error is ErrStale if they turn out to be
// old. It reads the cursors before the hashes, so the counts can only be newer than AsOf, and the clock last:
// what had not expired by then was there.
func fetch(ctx context.Context, r *Reader, dir *schema.Directory, at instant, plan planner) (snapshot, error) {
	plans, err := plan(dir.Layout, at.milli)
	if err != nil {
		return snapshot{}, err
	}
	need := planReads(r.Store.Keys, dir, plans)
	if r.MaxCells > 0 && need.room > r.MaxCells {
		return snapshot{}, &window.TooMuchError{What: "cells", Count: need.room, Max: r.MaxCells}
	}
	if r.MaxUniqueCells > 0 && need.unionCells > r.MaxUniqueCells {
		return snapshot{}, &window.TooMuchError{What: window.UniqueCells, Count: need.unionCells, Max: r.MaxUniqueCells}
	}
	trip, err := r.trips.ask(ctx, need.keySets)
	if err != nil {
		return snapshot{}, fmt.Errorf("read %d hashes and cells of uniques: %w", need.size(), err)
	}
	holds := r.clocks.learn(at, trip.sent, trip.received, trip.times, graceOf(plans))
	same, err := dir.Matches(trip.record, trip.list)
	if err != nil {
		r.directory.CompareAndSwap(dir, nil) // another question may have found a new one already
		return snapshot{}, err
	}
	if !same {
		r.directory.CompareAndSwap(dir, nil)
		return snapshot{}, ErrStale
	}
	if !holds {
		return snapshot{}, ErrStale
	}
	out := snapshot{keys: r.Store.Keys, dir: dir, plans: plans, at: at, clock: trip.times.Latest().UnixMilli()}
	if err := out.parse(need, trip); err != nil {
		return snapshot{}, nameQuestion(r, plans, nameForeign(ctx, r, err))
	}
	return out, out.advance(plan)
}

// nameQuestion adds to an error which question reads the foreign key, if one does.
func nameQuestion(r *Reader, plans []window.Plan, err error) error {
	var foreign *cluster.ForeignError
	if !errors.As(err, &foreign) {
		return err
	}
	for i := range plans {
		for h := range plans[i].Hashes {
			if r.Store.Keys.Hash(h) == foreign.Key {
				return &window.QuestionError{Index: i, Err: err}
			}
		}
		if countsKey(&plans[i], r.Store.Keys, foreign.Key) {
			return &window.QuestionError{Index: i, Err: err}
		}
	}
	return err
}

// checkCost returns how many counters MaxCells allows to be read with all of these plans; a counter's cost
// does not depend on its name. The error is a *TooMuchError if these are fewer than least.
func checkCost(r *Reader, least int, plans ...window.Plan) (int, error) {
	if r.MaxCells == 0 {
		return math.MaxInt, nil
	}
	var each int64
	for i := range plans {
		each += plans[i].Capacity()
	}
	if need := each * int64(least); need > r.MaxCells {
		return 0, &window.TooMuchError{What: "cells", Count: need, Max: r.MaxCells}
	}
	return int(r.MaxCells / each), nil
}

// ask plans for the current layout and moment, and fetches what the plans need; again if either has changed.
func (r *Reader) ask(ctx context.Context, plan planner) (snapshot, error) {
	return untilFresh(func() (snapshot, error) {
		dir, at, err := r.prepare(ctx)
		if err != nil {
			return snapshot{}, err
		}
		return fetch(ctx, r, dir, at, plan)
	})
}

func planAll(l window.Layout, questions []window.Question, now int64) ([]window.Plan, error) {
	plans := make([]window.Plan, len(questions))
	for i, q := range questions {
		asked, err := q.Span.At(now)
		if err == nil {
			plans[i], err = l.Plan(q.Counter, asked, now)
		}
		if err != nil {
			return nil, &window.QuestionError{Index: i, Err: err}
		}
	}
	return plans, nil
}

// planner plans a question for a layout and a moment (Unix milliseconds).
type planner func(l window.Layout, now int64) ([]window.Plan, error)

// sumOf plans sums. Hashes inside a range are read without their fields, which halves the cost.
func sumOf(questions []window.Question) planner {
	return func(l window.Layout, now int64) ([]window.Plan, error) {
		plans, err := planAll(l, questions, now)
		for i := range plans {
			plans[i].Sums = true
		}
		return plans, err
	}
}
