package answer

import (
	"context"

	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
	"tallyroll/internal/window"
)

const defaultGroups = 20

// othersKey is what a table calls the sum of the groups that it does not list.
const othersKey = "others"

// readSum reads the parameters of a question that may be about sums. With group, an empty prefix means all
// names.
func readSum(g api.Given, prefix *string, others ...api.Single) error {
	if g.Query.Get("group") != "" && g.Query.Has("prefix") && g.Query.Get("prefix") == "" {
		return g.Singles(others...)
	}
	return g.Singles(append(others, api.Text("prefix", api.NameHint, prefix))...)
}

func (in *Input) sums() bool { return in.prefix != "" || in.group != "" }

// listed lists the counters of a sum, more than MaxSum only if there are more. Some may have no hits.
func (d *Desk) listed(ctx context.Context, in *Input) (named, error) {
	return d.namesOf(ctx, window.NamesQuestion{Prefix: in.prefix, Listed: true}, d.MaxSum)
}

// summable returns the counters, or none if they are too many: the question is then asked only for its other
// errors.
func (d *Desk) summable(n named) []string {
	if len(n.counters) > d.MaxSum {
		return nil
	}
	return n.counters
}

func (d *Desk) sumSeries(ctx context.Context, in *Input, question window.SeriesQuestion) (out SeriesLines, err error) {
	limit, err := in.limit.Parse("limit", defaultGroups, 1, maxTop)
	if err != nil {
		return out, web.InputProblem(err, in.Part)
	}
	depth, err := in.group.Parse("group", 0, 1, maxGroup)
	if err != nil {
		return out, web.InputProblem(err, in.Part)
	}
	group := func(string) string { return in.prefix }
	if depth > 0 {
		group = func(name string) string { return window.GroupOf(name, int(depth)) }
	}
	var names named
	question.Counter = in.prefix
	found, err := Ask(ctx, d.Redis, func(ctx context.Context) (found window.SeriesSums, err error) {
		names, err = d.listed(ctx, in)
		if err != nil {
			return found, err
		}
		return d.Reader.SeriesSums(ctx, question, d.summable(names), group, int(limit))
	})
	if bad := Mendable(err); bad != nil {
		return out, in.unanswerable(period{}, bad)
	}
	if err != nil {
		return out, err
	}
	if len(names.counters) > d.MaxSum {
		return out, d.tooManyNames(in, names)
	}
	add := func(key string, line window.Series) {
		out.Keys, out.Found = append(out.Keys, key), append(out.Found, names.about(line))
	}
	if depth == 0 {
		add(in.prefix, found.All)
		out.listed = 1
		return out, nil
	}
	for _, l := range found.Lines {
		add(l.Group, l.Series)
	}
	out.groups, out.listed, out.others = true, len(found.Lines), found.OtherGroups
	switch {
	case found.Others != nil:
		add(othersKey, *found.Others)
	case len(found.Lines) == 0: // tables have a line all the same
		add(othersKey, found.All)
	}
	return out, nil
}

// about gives a sum the as_of and completeness of all counters, because one not listed yet may belong to it.
func (n *named) about(f window.Series) window.Series {
	f.AsOf, f.CompleteSince, f.CountingSince = min(f.AsOf, n.asOf), max(f.CompleteSince, n.completeSince), n.countingSince
	f.Complete = f.Complete && f.Range.From >= n.completeSince
	return f
}

func (d *Desk) topGroups(ctx context.Context, in *Input, p period, limit int) (topAnswer, error) {
	depth, err := in.group.Parse("group", 0, 1, maxGroup)
	if err != nil {
		return topAnswer{}, web.InputProblem(err, in.Part)
	}
	var names named
	found, err := Ask(ctx, d.Redis, func(ctx context.Context) (found window.Answers, err error) {
		names, err = d.listed(ctx, in)
		if err != nil {
			return found, err
		}
		asked := d.summable(names)
		if len(asked) == 0 {
			asked = []string{in.prefix} // for the range, and for what may be wrong with it
		}
		return d.Reader.Answer(ctx, questionsOf(asked, []period{p}))
	})
	if err != nil {
		if bad := Mendable(err); bad != nil {
			return topAnswer{}, in.unanswerable(p, bad)
		}
		return topAnswer{}, err
	}
	if len(names.counters) > d.MaxSum {
		return topAnswer{}, d.tooManyNames(in, names)
	}
	asOf, r := min(names.asOf, found.AsOf), found.Answers[0].Range
	out := topAnswer{
		AsOf: Time(asOf), Window: p.Window, CountingSince: Since(names.countingSince), Complete: r.From >= names.completeSince && found.Answers[0].Complete && !r.Outruns(asOf),
	}
	group := func(counter string) string { return counter }
	if depth > 0 {
		group = func(counter string) string { return window.GroupOf(counter, int(depth)) }
	}
	_, all, complete := addUp(names.counters, found.Answers, group)
	out.Complete = out.Complete && complete
	out.Top = make([]topTotal, 0, min(limit, len(all)))
	for _, g := range all {
		if len(out.Top) == limit || g.Total == 0 { // every group is known, so only these are missing
			out.Floor = max(out.Floor, g.Upper)
			continue
		}
		one := topTotal{Key: g.Group, Total: g.Total, Lower: g.Lower, Upper: r.AtMost(int64(g.Upper), asOf)}
		if depth > 0 {
			one.Counters = g.Counters
		}
		out.Top = append(out.Top, one)
	}
	out.Floor = r.AtMost(int64(out.Floor), asOf)
	return out, nil
}
