package answer

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"

	"tallyroll/internal/web"
	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
)

// listing is the counters of a sum. In the end, every hit stored before AsOf is in the sum.
type listing struct{ read.Names }

// listCounters lists the counters of a sum, more than MaxSum only if there are more. Some may have no hits in
// the span (nil: the longest window).
func (d *Service) listCounters(ctx context.Context, in *Input, within *window.Span) (listing, error) {
	names, err := read.AllNames(ctx, d.Reader.Names, read.NamesQuestion{Prefix: in.prefix, Within: within,
		Listed: true}, d.MaxSum)
	return listing{names}, err
}

// upTo returns the counters, or none if they are more than most: the question is then asked only for its
// other errors.
func (n *listing) upTo(most int) []string {
	if len(n.Counters) > most {
		return nil
	}
	return n.Counters
}

// applyTo gives a sum the as_of and completeness of all counters, because one not listed yet may belong to
// it.
func (n *listing) applyTo(f window.Series) window.Series {
	f.AsOf, f.CompleteSince = min(f.AsOf, n.AsOf), max(f.CompleteSince, n.CompleteSince)
	f.CountingSince = n.CountingSince
	f.Complete = f.Complete && f.Range.From >= n.CompleteSince
	return f
}

func (n *listing) tooMany(in *Input, most int) *web.Problem {
	begin := "begin with " + web.Excerpt(in.prefix)
	if in.prefix == "" {
		begin = "are known"
	}
	return web.BadInput("prefix", "at least %d counters %s: at most %d are added up (QUERY_MAX_SUM): use a longer "+
		"prefix, or a rule that counts the group as a counter of its own",
		len(n.Counters), begin, most).Problem(in.Part)
}

// sumTotals adds up totals of single counters, because Redis has no sums by prefix: with them, each hit would
// cost more.
func (d *Service) sumTotals(ctx context.Context, in *Input, periods []period) (out TotalAnswer, past bool, err error) {
	depth := in.depth()
	var names listing
	var asked, overflows []string
	found, err := Read(ctx, d.Redis, func(ctx context.Context) (found window.Answers, err error) {
		names, err = d.listCounters(ctx, in, nil)
		if err != nil {
			return found, err
		}
		asked = names.upTo(d.MaxSum)
		if len(asked) == 0 {
			asked = in.anyCounter(ctx)
		}
		overflows = names.Overflows
		questions := questionsOf(slices.Concat(asked, overflows), periods)
		for i := range questions {
			questions[i].Part = true
		}
		return d.Reader.Answer(ctx, questions)
	})
	if err != nil {
		return out, false, in.explain(err, periods...)
	}
	if len(names.Counters) > d.MaxSum {
		return out, false, names.tooMany(in, d.MaxSum)
	}
	names.AsOf = min(names.AsOf, found.AsOf)
	out = TotalAnswer{AsOf: Time(names.AsOf), Totals: make([]Total, len(periods))}
	for i, p := range periods {
		answers := make([]window.Answer, len(asked)+len(overflows))
		for k := range answers {
			answers[k] = found.Answers[k*len(periods)+i]
		}
		out.Totals[i] = sumOf(in.prefix, p.Window, names, answers[:len(asked)], depth)
		out.Totals[i].addOverflows(overflows, answers[len(asked):])
	}
	return out, endedBefore(found.Answers, found.Now), nil
}

// sumOf adds up the answers about a period. There is at least one answer, even without counters.
func sumOf(prefix, windowText string, names listing, answers []window.Answer, depth int) Total {
	out := TotalOf(prefix, windowText, answers[0], names.AsOf)
	out.CountingSince = Since(names.CountingSince)
	r := answers[0].Range
	// Also without a counter.
	out.Complete = r.From >= names.CompleteSince && answers[0].Complete && !r.Outruns(names.AsOf)
	var group func(string) string
	if depth > 0 {
		group = func(counter string) string { return window.GroupOf(counter, depth) }
	}
	all, groups, complete := addUp(names.Counters, answers, group)
	out.Complete = out.Complete && complete
	out.Total, out.Lower, out.Upper = all.Total, all.Lower, r.AtMost(int64(all.Upper), names.AsOf)
	out.SumOver = &SumOver{Counters: all.Counters, Groups: groups}
	for i := range groups { // a counter that is not listed yet may be of any group
		groups[i].Upper = r.AtMost(int64(groups[i].Upper), names.AsOf)
	}
	return out
}

// addOverflows adds what overflow counters have to what a sum and its groups can have at most, unless they
// are counters of it.
func (t *Total) addOverflows(counters []string, answers []window.Answer) {
	for i, counter := range counters {
		if answers[i].Upper > 0 && window.OverflowsTo(t.Key, counter) {
			t.Overflow, t.Upper = cmp.Or(t.Overflow, counter), t.Upper.Plus(answers[i].Upper)
		}
		for k := range t.Groups {
			if g := &t.Groups[k]; window.OverflowsTo(g.Group, counter) {
				g.Upper = g.Upper.Plus(answers[i].Upper)
			}
		}
	}
}

// addUp adds up the answers, in total and by group: the largest groups first, equal ones by name. It counts
// the counters that have or may have hits. A nil group means no groups.
func addUp(counters []string, answers []window.Answer,
	group func(counter string) string) (all SumGroup, groups []SumGroup, complete bool) {
	complete = true
	index := make(map[string]int)
	for i, counter := range counters {
		a := answers[i]
		complete = complete && a.Complete
		if a.Upper == 0 {
			continue
		}
		all.Add(a.Estimate)
		if group == nil {
			continue
		}
		name := group(counter)
		at, ok := index[name]
		if !ok {
			at = len(groups)
			index[name] = at
			groups = append(groups, SumGroup{Group: name})
		}
		groups[at].Add(a.Estimate)
	}
	slices.SortFunc(groups, func(a, b SumGroup) int {
		return cmp.Or(cmp.Compare(b.Total, a.Total), strings.Compare(a.Group, b.Group))
	})
	return all, groups, complete
}

// Add saturates at the largest number and never wraps round.
func (g *SumGroup) Add(e window.Estimate) {
	g.Counters++
	g.Total += min(e.Total, math.MaxInt64-g.Total)
	g.Lower += min(e.Lower, math.MaxInt64-g.Lower)
	g.Upper = g.Upper.Plus(e.Upper)
}
