package read

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"tallyroll/internal/window"
	"tallyroll/internal/window/schema"
)

// SeriesSums are series added up over counters, with the same steps, and as fresh and complete as all are.
type SeriesSums struct {
	All window.Series
	// Lines are the sums of the largest groups with hits: by hits, the largest first; then by name.
	Lines []SeriesLine
	// Others is the sum of the other OtherGroups groups with hits; nil without such groups.
	Others      *window.Series
	OtherGroups int
}

// SeriesLine is the sum of a group.
type SeriesLine struct {
	Group string
	window.Series
}

// SeriesSums answers the question about each counter in one round trip, and adds the answers up by group, at
// most lines of them. Without counters, all sums are 0. Errors: those of Answer; a *QuestionError has the
// index 0. MaxPoints bounds the points of lines and others. It goes over the cells twice, to hold only the
// steps of the lines.
func (r *Reader) SeriesSums(ctx context.Context, q window.SeriesQuestion, counters []string,
	group func(counter string) string, lines int) (SeriesSums, error) {
	groups := groupsOf(counters, group)
	asked := counters
	if len(asked) == 0 {
		asked = []string{q.Counter} // for the range, and for what may be wrong with it
	}
	var p window.SeriesPlan
	found, err := r.ask(ctx, func(d *schema.Directory, now int64) ([]window.Plan, error) {
		var err error
		l := d.Layout
		if p, err = l.PlanSeries(q, now); err != nil {
			return nil, &window.QuestionError{Index: 0, Err: err}
		}
		if points := p.Points() * int64(min(len(groups.names), lines)+1); r.MaxPoints > 0 && points > r.MaxPoints {
			return nil, &window.TooMuchError{What: "points", Count: points, Max: r.MaxPoints}
		}
		plans := make([]window.Plan, len(asked))
		for i, counter := range asked {
			plans[i] = p.For(counter, l)
		}
		return plans, nil
	})
	if err != nil {
		return SeriesSums{}, err
	}
	for i := range counters {
		for _, e := range p.Counts(found.cells[i], found.latest(&found.plans[i])) {
			groups.add(i, e)
		}
	}
	chosen, others := groups.largest(lines)
	sums := make([][]window.Estimate, len(chosen)+1) // of the lines, and of the others
	for i := range sums {
		sums[i] = make([]window.Estimate, p.Points())
	}
	line := make([]int, len(groups.names)) // of each group
	for i := range line {
		line[i] = len(chosen)
	}
	for i, g := range chosen {
		line[g] = i
	}
	for i := range counters {
		p.Count(sums[line[groups.of[i]]], found.cells[i], found.latest(&found.plans[i]))
	}
	all := make([]window.Estimate, p.Points())
	for _, sum := range sums {
		for i, e := range sum {
			all[i].AddAll(e)
		}
	}
	made := p.Series(q, found.at.milli)
	made.AsOf, made.Complete = found.asOf(), true
	for i := range found.plans {
		shard := found.progress(&found.plans[i])
		made.Complete = made.Complete && found.complete(&found.plans[i])
		made.CountingSince, made.CompleteSince = max(made.CountingSince, shard.began),
			max(made.CompleteSince, shard.whole(), p.Tier.Since)
	}
	out := SeriesSums{All: made.WithCounts(all, p.Cuts), OtherGroups: others}
	for i, g := range chosen {
		out.Lines = append(out.Lines, SeriesLine{groups.names[g], made.WithCounts(sums[i], p.Cuts)})
	}
	if others > 0 {
		rest := made.WithCounts(sums[len(chosen)], p.Cuts)
		out.Others = &rest
	}
	return out, nil
}

type grouping struct {
	of    []int // by counter: the index of its group
	names []string
	hits  []window.Estimate
}

func groupsOf(counters []string, group func(string) string) grouping {
	out := grouping{of: make([]int, len(counters))}
	index := make(map[string]int)
	for i, counter := range counters {
		name := group(counter)
		at, ok := index[name]
		if !ok {
			at = len(out.names)
			index[name] = at
			out.names = append(out.names, name)
		}
		out.of[i] = at
	}
	out.hits = make([]window.Estimate, len(out.names))
	return out
}

func (g *grouping) add(counter int, e window.Estimate) { g.hits[g.of[counter]].AddAll(e) }

// largest returns the groups with most hits, and how many others have some.
func (g *grouping) largest(most int) (chosen []int, others int) {
	for i, e := range g.hits {
		if e.Upper > 0 {
			chosen = append(chosen, i)
		}
	}
	slices.SortFunc(chosen, func(a, b int) int {
		return cmp.Or(cmp.Compare(g.hits[b].Total, g.hits[a].Total), strings.Compare(g.names[a], g.names[b]))
	})
	if len(chosen) > most {
		return chosen[:most], len(chosen) - most
	}
	return chosen, 0
}
