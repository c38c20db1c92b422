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

type listing struct {
	counters      []string
	asOf          int64 // every counter with a hit stored before is among them, and in the end the hit in the sum
	completeSince int64
	countingSince int64
}

// listNames reads one name more than most, by which the caller sees that there are too many.
func (d *Service) listNames(ctx context.Context, q read.NamesQuestion, most int) (listing, error) {
	out := listing{asOf: math.MaxInt64}
	for {
		q.Limit = most + 1 - len(out.counters)
		page, err := d.Reader.Names(ctx, q)
		if err != nil {
			return listing{}, err
		}
		out.counters = append(out.counters, page.Counters...)
		// What the clock of NATS has dated after Now is not listed yet.
		out.asOf = min(out.asOf, page.AsOf, page.Now)
		out.completeSince = max(out.completeSince, page.CompleteSince)
		out.countingSince = page.CountingSince
		if page.Next == "" || len(out.counters) > most {
			return out, nil
		}
		q.After = page.Next
	}
}

// listCounters lists the counters of a sum, more than MaxSum only if there are more. Some may have no hits.
func (d *Service) listCounters(ctx context.Context, in *Input) (listing, error) {
	return d.listNames(ctx, read.NamesQuestion{Prefix: in.prefix, Listed: true}, d.MaxSum)
}

// upTo returns the counters, or none if they are more than most: the question is then asked only for its
// other errors.
func (n *listing) upTo(most int) []string {
	if len(n.counters) > most {
		return nil
	}
	return n.counters
}

// applyTo gives a sum the as_of and completeness of all counters, because one not listed yet may belong to
// it.
func (n *listing) applyTo(f window.Series) window.Series {
	f.AsOf, f.CompleteSince, f.CountingSince = min(f.AsOf, n.asOf), max(f.CompleteSince, n.completeSince),
		n.countingSince
	f.Complete = f.Complete && f.Range.From >= n.completeSince
	return f
}

func (n *listing) tooMany(in *Input, most int) *web.Problem {
	begin := "begin with " + web.Excerpt(in.prefix)
	if in.prefix == "" {
		begin = "are known"
	}
	return web.BadInput("prefix", "at least %d counters %s: at most %d are added up (QUERY_MAX_SUM): use a longer "+
		"prefix, or a rule that counts the group as a counter of its own",
		len(n.counters), begin, most).Problem(in.Part)
}

// sumTotals adds up totals of single counters, because Redis has no sums by prefix: with them, each hit would
// cost more.
func (d *Service) sumTotals(ctx context.Context, in *Input, periods []period) (out TotalAnswer, past bool, err error) {
	depth := in.depth()
	var names listing
	var asked []string
	found, err := Read(ctx, d.Redis, func(ctx context.Context) (found window.Answers, err error) {
		names, err = d.listNames(ctx, read.NamesQuestion{Prefix: in.prefix}, d.MaxSum)
		if err != nil {
			return found, err
		}
		asked = names.counters
		if len(asked) == 0 || len(asked) > d.MaxSum {
			asked = []string{in.prefix} // for the ranges, and for what may be wrong with the periods
		}
		return d.Reader.Answer(ctx, questionsOf(asked, periods))
	})
	if err != nil {
		return out, false, in.explain(err, periods...)
	}
	if len(names.counters) > d.MaxSum {
		return out, false, names.tooMany(in, d.MaxSum)
	}
	names.asOf = min(names.asOf, found.AsOf)
	out = TotalAnswer{AsOf: Time(names.asOf), Totals: make([]Total, len(periods))}
	for i, p := range periods {
		answers := make([]window.Answer, len(asked))
		for k := range asked {
			answers[k] = found.Answers[k*len(periods)+i]
		}
		out.Totals[i] = sumOf(in.prefix, p.Window, names, answers, depth)
	}
	return out, endedBefore(found.Answers, found.Now), nil
}

// sumOf adds up the answers about a period. There is at least one answer, even without counters.
func sumOf(prefix, windowText string, names listing, answers []window.Answer, depth int) Total {
	out := TotalOf(prefix, windowText, answers[0], names.asOf)
	out.CountingSince = Since(names.countingSince)
	r := answers[0].Range
	out.Complete = r.From >= names.completeSince && answers[0].Complete &&
		!r.Outruns(names.asOf) // also without a counter
	var group func(string) string
	if depth > 0 {
		group = func(counter string) string { return window.GroupOf(counter, depth) }
	}
	all, groups, complete := addUp(names.counters, answers, group)
	out.Complete = out.Complete && complete
	out.Total, out.Lower, out.Upper = all.Total, all.Lower, r.AtMost(int64(all.Upper), names.asOf)
	out.SumOver = &SumOver{Counters: all.Counters, Groups: groups}
	for i := range groups { // a counter that is not listed yet may be of any group
		groups[i].Upper = r.AtMost(int64(groups[i].Upper), names.asOf)
	}
	return out
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
	g.Upper += min(window.Bound(e.Upper), window.Unbounded-g.Upper)
}
