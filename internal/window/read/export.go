package read

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"tallyroll/internal/platform/human"
	"tallyroll/internal/window"
	"tallyroll/internal/window/schema"
)

// An export is the hits of all counters, step by step, in a past range. A page is what one pipeline reads, so
// memory and the load on Redis do not depend on the number of counters.
//
// A step is closed if it has ended by as_of: every hit stored in it is applied. An export has closed steps
// only. If a replica takes over, as_of goes back. So that no step reopens unnoticed, each page reads the
// cursors of all shards after its names and before its cells, and the next page's names after them.

// Export describes an export. Any process that has it can read all of its pages.
type Export struct {
	Prefix string
	// Range is the range asked for, widened to whole steps, without those that were not closed. It can be
	// empty. Steps begin at multiples of their length since 1970.
	Range window.Range
	Step  time.Duration
	// Cut reports whether the question named an end that was not closed.
	Cut bool
}

// ExportQuestion asks for the closed steps of all counters in a range.
type ExportQuestion struct {
	Prefix string // that the names begin with
	// From and To are Unix milliseconds, or Now. To is then as_of, and From a day before To. If both are Now,
	// the range is the last closed day of UTC.
	From, To int64
	// Step is a cell, or whole cells of a tier into which a day divides evenly. 0 is a cell of the finest
	// tier that holds the range.
	Step time.Duration
}

// ExportPlace is how far an export has been read. The zero value is its beginning.
type ExportPlace struct {
	Counter string // all counters up to this one have been read
	// Inside, if not 0, is the moment (Unix milliseconds) up to which Counter itself has been read.
	Inside int64
}

// ExportPage is a part of an export.
type ExportPage struct {
	Rows []ExportRow // in the order of names and steps
	Next ExportPlace // the place behind the page
	More bool        // there may be another page
	AsOf int64       // as in Answers; never before the end of the range
	// Complete reports whether no hit of the range is known to be missing.
	Complete bool
}

// ExportRow is a step in which a counter has hits.
type ExportRow struct {
	Counter string
	From    int64 // Unix milliseconds
	Hits    int64
}

const (
	// exportCells is how many cells the hashes of a page can hold. Full ones take Redis some 10 ms.
	exportCells = 50_000
	// exportNames is the most counters per page.
	exportNames = 1000
	dayMillis   = 86_400_000
)

// ErrReopened means that closed steps reopened: Redis has lost commits, or a stream has come back.
var ErrReopened = errors.New("as_of has gone back behind the end of the export")

// StepError means that an export cannot have such steps.
type StepError struct {
	Step  time.Duration
	Tiers window.Tiers
}

func (e *StepError) Error() string {
	cells := make([]string, len(e.Tiers))
	for i, t := range e.Tiers {
		cells[i] = human.FormatDuration(t.Cell)
	}
	return fmt.Sprintf("%s is not a step of an export: must be a cell (%s), or several of one of which a day is a "+
		"whole number",
		human.FormatDuration(e.Step), strings.Join(cells, ", "))
}

// exportReachError means that the cells for a step do not reach back to the beginning of the range.
type exportReachError struct {
	step time.Duration
	from int64
	fit  window.Tiers // that have cells for the step
}

func (e *exportReachError) Error() string {
	return fmt.Sprintf("the cells for a step of %s do not reach back to %s: %s", human.FormatDuration(e.step),
		window.Moment(e.from), e.fit.Reach())
}

// BeginExport decides range and steps by the current cursors. Its errors are those of Answer, and a
// *StepError in a *QuestionError.
func (r *Reader) BeginExport(ctx context.Context, q ExportQuestion) (Export, error) {
	return WithSurvey(ctx, r, func(found Survey) (Export, error) {
		out, err := q.plan(found.dir.Layout, found.at.milli, found.asOf())
		if err != nil {
			return Export{}, &window.QuestionError{Index: 0, Err: err}
		}
		return out, nil
	})
}

// plan decides the range and the steps at now (Unix milliseconds).
func (q ExportQuestion) plan(l window.Layout, now, asOf int64) (Export, error) {
	closed := min(asOf, now)
	q.From, q.To = window.Absolute(q.From, now), window.Absolute(q.To, now)
	if q.To != window.Now && q.To-now > window.MaxEndAhead.Milliseconds() {
		return Export{}, &window.AheadError{To: q.To, Now: now}
	}
	r := window.Range{From: q.From, To: q.To}
	switch {
	case r.To == window.Now && r.From == window.Now:
		r.To = closed
		if closed <= 0 { // some stream has not been counted yet
			r.To = now
		}
		r.To = window.FloorDiv(r.To, dayMillis) * dayMillis
	case r.To == window.Now && r.From >= now:
		return Export{}, &window.EmptyError{Range: window.Range{From: r.From, To: now}}
	case r.To == window.Now:
		r.To = max(closed, r.From)
	}
	if r.From == window.Now {
		r.From = r.To - dayMillis
	}
	if q.To != window.Now && r.From >= r.To {
		return Export{}, &window.EmptyError{Range: r}
	}
	step, err := exportStep(l, q.Step, r.From, now)
	if err != nil {
		return Export{}, err
	}
	length := step.Milliseconds()
	out := Export{Prefix: q.Prefix, Step: step}
	out.Range.From = window.FloorDiv(r.From, length) * length
	out.Range.To = -window.FloorDiv(-r.To, length) * length
	if out.Range.To > closed {
		out.Cut = q.To != window.Now
		out.Range.To = max(out.Range.From, window.FloorDiv(closed, length)*length)
	}
	_, err = out.tier(l, now)
	return out, err
}

func exportStep(l window.Layout, step time.Duration, from, now int64) (time.Duration, error) {
	if step == 0 {
		t, _, err := l.Holding(l.Tiers, from, now, false)
		return t.Cell, err
	}
	if slices.ContainsFunc(l.Tiers, func(t window.Tier) bool {
		return t.Cell == step || step%t.Cell == 0 && 24*time.Hour%step == 0
	}) {
		return step, nil
	}
	return 0, &StepError{step, l.Tiers}
}

// tier returns the cheapest tier that holds the range. All such have all of its hits (see Layout.Plan).
func (e Export) tier(l window.Layout, now int64) (window.Tier, error) {
	var fit, held window.Tiers
	for _, t := range l.Tiers {
		if e.Step%t.Cell == 0 {
			fit = append(fit, t)
			if t.HoldsSince(e.Range.From, now) {
				held = append(held, t)
			}
		}
	}
	switch {
	case len(fit) == 0:
		return window.Tier{}, &StepError{e.Step, l.Tiers}
	case len(held) == 0:
		return window.Tier{}, &exportReachError{e.Step, e.Range.From, fit}
	}
	return slices.MinFunc(held, func(a, b window.Tier) int {
		return cmp.Or(cmp.Compare(max(a.Since, e.Range.From), max(b.Since, e.Range.From)),
			cmp.Compare(roomOf(a, e.Range), roomOf(b, e.Range)))
	}), nil
}

// roomOf returns how many cells the hashes of a range can hold.
func roomOf(t window.Tier, r window.Range) int64 {
	first, last := window.EpochsOf(t, r)
	return (last - first + 1) * t.CellsPerEpoch()
}

// ExportPage reads the page after a place. Its errors are those of Answer, and ErrReopened, and a
// *QuestionError if the tier that answers ceases to hold the range while the export goes on.
func (r *Reader) ExportPage(ctx context.Context, e Export, at ExportPlace) (ExportPage, error) {
	return untilFresh(func() (ExportPage, error) {
		dir, now, err := r.prepare(ctx)
		if err != nil {
			return ExportPage{}, err
		}
		return e.page(ctx, r, dir, now, at)
	})
}

func (e Export) page(ctx context.Context, r *Reader, dir *schema.Directory, now instant,
	at ExportPlace) (ExportPage, error) {
	tier, err := e.tier(dir.Layout, now.milli)
	if err != nil {
		return ExportPage{}, &window.QuestionError{Index: 0, Err: err}
	}
	names, piece, more, err := e.names(ctx, r, dir.Layout, tier, at)
	if err != nil {
		return ExportPage{}, err
	}
	found, err := r.fetch(ctx, dir, now, func(d *schema.Directory, now int64) ([]window.Plan, error) {
		l := d.Layout
		if !tier.HoldsSince(e.Range.From, now) {
			return nil, &window.QuestionError{Index: 0, Err: &exportReachError{e.Step, e.Range.From,
				window.Tiers{tier}}}
		}
		plans := make([]window.Plan, len(names), len(names)+l.Shards)
		for i, name := range names {
			plans[i] = window.NewPlan(l, name, piece, now, tier)
			plans[i].Add(tier, piece)
			plans[i].AddLogs(l)
		}
		for shard := range l.Shards { // for the cursors of all of them
			plans = append(plans, window.Plan{Shard: shard})
		}
		return plans, nil
	})
	if err != nil {
		return ExportPage{}, err
	}
	whole := window.Plan{Range: e.Range}
	whole.Add(tier, e.Range)
	out := ExportPage{More: more, Next: at, AsOf: found.asOf(), Complete: Survey{r, found}.complete(whole)}
	if e.Range.From < e.Range.To && out.AsOf < e.Range.To {
		return ExportPage{}, ErrReopened
	}
	if len(names) > 0 {
		var saturated bool
		out.Rows, saturated = e.rows(found, piece, len(names))
		out.Complete = out.Complete && !saturated
		out.Next = ExportPlace{Counter: names[len(names)-1]}
	}
	if piece.To < e.Range.To {
		out.Next.Inside, out.More = piece.To, true
	}
	return out, nil
}

// names returns the counters of the page after a place, the part of the range that it covers, and
// whether there may be more. A page covers the whole range, unless a single counter's range is too much.
func (e Export) names(ctx context.Context, r *Reader, l window.Layout, tier window.Tier,
	at ExportPlace) (names []string, piece window.Range, more bool, err error) {
	piece = e.Range
	if piece.From == piece.To {
		return nil, piece, false, nil
	}
	room := int64(exportCells)
	if r.MaxCells > 0 {
		room = min(room, r.MaxCells)
	}
	logs := window.Plan{Range: piece}
	logs.AddLogs(l)
	most := min(room/(roomOf(tier, piece)+logs.Capacity()), exportNames)
	sets := NameSetsOf(r.Store.Keys, l, piece)
	if most > 0 {
		names, more, err = sets.List(ctx, r.Store.Client, e.Prefix, at.Counter, int(most))
		return names, piece, more, err
	}
	if at.Inside == 0 {
		names, more, err = sets.List(ctx, r.Store.Client, e.Prefix, at.Counter, 1)
		if err != nil || len(names) == 0 {
			return nil, piece, false, err
		}
	} else {
		names, more, piece.From = []string{at.Counter}, true, at.Inside
	}
	// Both edges of the piece may lie in a hash of which the rest is not asked for.
	step := e.Step.Milliseconds()
	steps := max(1, (room-logs.Capacity()-2*tier.CellsPerEpoch())*tier.CellMillis()/step)
	piece.To = min(piece.To, piece.From+steps*step)
	return names, piece, more, nil
}

// rows adds up the cells of the first plans, which are those of the counters.
func (e Export) rows(found snapshot, piece window.Range, counters int) (out []ExportRow, saturated bool) {
	step := e.Step.Milliseconds()
	hits := make([]window.Estimate, (piece.To-piece.From)/step)
	for i := range counters {
		clear(hits)
		p := window.SeriesPlan{Plan: found.plans[i], Step: step}
		p.Count(hits, found.cells[i], 0)
		for j, n := range hits {
			if saturated = saturated || n.IsSaturated(); n.Total > 0 {
				out = append(out, ExportRow{p.Counter, piece.From + int64(j)*step, n.Total})
			}
		}
	}
	return out, saturated
}
