package read

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"tallyroll/internal/window"
	"tallyroll/internal/window/internal/cluster"
	"tallyroll/internal/window/schema"
)

// planner plans a question for a namespace and a moment (Unix milliseconds).
type planner func(d *schema.Directory, now int64) ([]window.Plan, error)

// totalsPlanner plans questions about totals, and then those about the overflow counters that may have some
// of their hits. Hashes inside a range are read without their fields, which halves the cost.
type totalsPlanner struct {
	questions []window.Question
	overflows
}

func (t *totalsPlanner) plan(d *schema.Directory, now int64) ([]window.Plan, error) {
	plans, err := planAll(d.Layout, t.questions, now)
	if err != nil {
		return nil, err
	}
	more, err := planAll(d.Layout, t.find(d, t.questions, plans), now)
	plans = append(plans, more...)
	for i := range plans {
		plans[i].Sums = true
	}
	return plans, err
}

// overflows are the overflow counters that questions are also about.
type overflows []struct {
	of      int // the question
	counter string
}

// find finds them by plan, and returns the questions about them.
func (o *overflows) find(d *schema.Directory, questions []window.Question,
	plans []window.Plan) (more []window.Question) {
	*o = (*o)[:0]
	for i, q := range questions {
		if q.Part {
			continue
		}
		for _, counter := range d.OverflowsOf(q.Counter, plans[i].Range.From) {
			*o = append(*o, struct {
				of      int
				counter string
			}{i, counter})
			more = append(more, window.Question{Counter: counter, Span: q.Span})
		}
	}
	return more
}

// named lets an error about an overflow counter be one about the question; asked is how many there are.
func (o overflows) named(err error, asked int) error {
	if q, ok := errors.AsType[*window.QuestionError](err); ok && q.Index >= asked {
		return &window.QuestionError{Index: o[q.Index-asked].of, Err: q.Err}
	}
	return err
}

// add adds what the overflow counters have, the last of the answers, to what the others can have at most.
func (o overflows) add(out window.Answers) window.Answers {
	n := len(out.Answers) - len(o)
	for i, overflow := range o {
		a := &out.Answers[overflow.of]
		a.Upper = window.AddCounts(a.Upper, out.Answers[n+i].Upper)
		a.Overflow = cmp.Or(a.Overflow, overflow.counter)
	}
	out.Answers = out.Answers[:n]
	return out
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

// ask plans for the current layout and moment, and fetches what the plans need; again if either has changed.
func (r *Reader) ask(ctx context.Context, plan planner) (snapshot, error) {
	return untilFresh(func() (snapshot, error) {
		dir, at, err := r.prepare(ctx)
		if err != nil {
			return snapshot{}, err
		}
		return r.fetch(ctx, dir, at, plan)
	})
}

// fetch plans for a moment, and reads once what the plans need. The error is ErrStale if they turn out to be
// old. It reads the cursors before the hashes, so the counts can only be newer than AsOf, and the clock last:
// what had not expired by then was there.
func (r *Reader) fetch(ctx context.Context, dir *schema.Directory, at instant, plan planner) (snapshot, error) {
	plans, err := plan(dir, at.milli)
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
		return snapshot{}, out.nameQuestion(nameForeign(ctx, r.Store.Client, err))
	}
	return out, out.advance(plan)
}

// nameQuestion adds to an error which question reads the foreign key, if one does.
func (s *snapshot) nameQuestion(err error) error {
	var foreign *window.ForeignError
	if !errors.As(err, &foreign) {
		return err
	}
	for i := range s.plans {
		for h := range hashesOf(&s.plans[i], s.dir.Layout) {
			if s.keys.Hash(h) == foreign.Key {
				return &window.QuestionError{Index: i, Err: err}
			}
		}
		if countsKey(&s.plans[i], s.keys, foreign.Key) {
			return &window.QuestionError{Index: i, Err: err}
		}
	}
	return err
}

// nameForeign finds out which key of a union is not Tallyroll's, which Redis's error does not show.
func nameForeign(ctx context.Context, client *cluster.Client, err error) error {
	var foreign *window.ForeignError
	if !errors.As(err, &foreign) || !strings.Contains(foreign.Key, keySeparator) {
		return err
	}
	for key := range strings.SplitSeq(foreign.Key, keySeparator) {
		switch err := client.PFCount(ctx, key).Err(); {
		case cluster.IsAboutValue(err):
			return &window.ForeignError{Key: key, Err: err}
		case err != nil: // it may be this key or a later one
			return fmt.Errorf("find the unique cell that is not Tallyroll's: %w", err)
		}
	}
	return fmt.Errorf("a unique cell was not Tallyroll's, and is gone: %w", foreign.Err)
}
