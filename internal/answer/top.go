package answer

import (
	"context"
	"time"

	"tallyroll/internal/access"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
	"tallyroll/internal/window"
)

// topParams is what GET /v1/top takes, and as JSON the endpoint top over NATS.
type topParams struct {
	Window string     `query:"window" json:"window" required:"true" doc:"How far to look back: a whole number and a unit (s, m, h, d, w, y)." example:"1h"`
	Limit  api.Number `query:"limit" json:"limit" doc:"The most counters to list: 1 to 1000. Default: 20." example:"20"`
	At     api.Moment `query:"at" json:"at" doc:"The end of the window: an RFC 3339 time or Unix milliseconds. Default: now." example:"\"2026-11-21T10:00:00Z\""`
	Prefix string     `query:"prefix" json:"prefix" doc:"Only counters whose names begin like this. It may be empty beside group." example:"shop."`
	Group  api.Number `query:"group" json:"group" doc:"List groups of counters whose names have so many first parts in common, parted by . or /. 1 to 16." example:"2"`
}

func (p *topParams) Read(g api.Request) error {
	return readSum(g, &p.Prefix,
		api.Text("group", groupHint, (*string)(&p.Group)),
		api.Text("window", api.WindowHint, &p.Window),
		api.Text("limit", topHint, (*string)(&p.Limit)),
		api.Text("at", api.MomentHint, (*string)(&p.At)),
	)
}

type topAnswer struct {
	AsOf          time.Time    `json:"as_of" doc:"Every hit stored before this moment is in the answer. 1970-01-01T00:00:00Z if some stream has not been counted yet." example:"2026-11-21T10:00:00.2Z"`
	Window        string       `json:"window" doc:"The window as it was asked for." example:"1h"`
	Complete      bool         `json:"complete" doc:"False if hits of the window are known to be missing, or may be: counting began, or hits were discarded unread, after it began; or floor is null." example:"true"`
	CountingSince time.Time    `json:"counting_since,omitzero" doc:"When counting of these streams began; absent if that is not known." example:"2026-10-01T08:00:00Z"`
	Floor         window.Bound `json:"floor" nullable:"true" doc:"No counter, or group, with more hits in the window is missing from the list. Null if nobody knows, because nobody has counted lately: the window ends more than 5 seconds after as_of." example:"37"`
	Top           []topTotal   `json:"top" doc:"The counters or groups by total, the largest first; those with the same total by name."`
}

type topTotal struct {
	Key      string       `json:"key" doc:"The counter or the group." example:"api-1"`
	Counters int          `json:"counters,omitempty" doc:"Of a group: how many counters have hits in the window, or may have some." example:"12"`
	Total    int64        `json:"total" doc:"The hits in the window, as /v1/total gives them; of a group, the sum of its counters' totals." example:"1234"`
	Lower    int64        `json:"lower" doc:"There were at least this many hits." example:"1229"`
	Upper    window.Bound `json:"upper" nullable:"true" doc:"There were at most this many hits; null if floor is." example:"1241"`
}

// Top checks parameters and answers. Its errors are for the client.
func (d *Service) Top(ctx context.Context, part string, p *topParams) (topAnswer, error) {
	limit, err := p.Limit.Parse("limit", defaultTop, 1, maxTop)
	if err != nil {
		return topAnswer{}, web.InputProblem(err, part)
	}
	if p.Window == "" {
		return topAnswer{}, web.BadInput("window", "it is missing: allowed is %s", api.WindowHint).Problem(part)
	}
	in := &Input{Part: part, WindowsParam: "window", Windows: []string{p.Window}, at: p.At, prefix: p.Prefix, group: p.Group}
	periods, err := in.Periods()
	if err == nil && in.isSum() {
		err = in.checkSum()
	}
	if err != nil {
		return topAnswer{}, web.InputProblem(err, part)
	}
	return d.top(ctx, in, periods[0], int(limit))
}

// top answers a checked input. The streams' summaries are about all counters, so the largest of a prefix, or
// of a token with prefixes, are found among all of its totals.
func (d *Service) top(ctx context.Context, in *Input, p period, limit int) (topAnswer, error) {
	if in.isSum() || access.From(ctx).HasPrefixes() {
		return d.topGroups(ctx, in, p, limit)
	}
	found, err := Read(ctx, d.Redis, func(ctx context.Context) (window.Top, error) { return d.Reader.Top(ctx, p.Span, limit) })
	if err != nil {
		if bad := ClientError(err); bad != nil {
			return topAnswer{}, in.questionProblem(p, bad)
		}
		return topAnswer{}, err
	}
	out := topAnswer{
		AsOf: Time(found.AsOf), Window: p.Window, CountingSince: Since(found.CountingSince),
		Complete: found.Complete && !found.Range.Outruns(found.AsOf),
		Floor:    found.Range.AtMost(found.Floor, found.AsOf), Top: make([]topTotal, len(found.Counters)),
	}
	for i, c := range found.Counters {
		out.Top[i] = topTotal{Key: c.Counter, Total: c.Total, Lower: c.Lower, Upper: found.Range.AtMost(c.Upper, found.AsOf)}
	}
	return out, nil
}

func (d *Service) topGroups(ctx context.Context, in *Input, p period, limit int) (topAnswer, error) {
	depth, err := in.group.Parse("group", 0, 1, maxGroup)
	if err != nil {
		return topAnswer{}, web.InputProblem(err, in.Part)
	}
	var names listing
	found, err := Read(ctx, d.Redis, func(ctx context.Context) (found window.Answers, err error) {
		names, err = d.listCounters(ctx, in)
		if err != nil {
			return found, err
		}
		asked := names.upTo(d.MaxSum)
		if len(asked) == 0 {
			asked = []string{in.prefix} // for the range, and for what may be wrong with it
		}
		return d.Reader.Answer(ctx, questionsOf(asked, []period{p}))
	})
	if err != nil {
		if bad := ClientError(err); bad != nil {
			return topAnswer{}, in.questionProblem(p, bad)
		}
		return topAnswer{}, err
	}
	if len(names.counters) > d.MaxSum {
		return topAnswer{}, names.tooMany(in, d.MaxSum)
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

func TopExample() topAnswer {
	return topAnswer{
		AsOf: time.Date(2026, 11, 21, 10, 0, 0, 2e8, time.UTC), Window: "1h", Complete: true, CountingSince: SinceExample, Floor: 37,
		Top: []topTotal{{Key: "api-1", Total: 1234, Lower: 1229, Upper: 1241}, {Key: "/cart", Total: 311, Lower: 309, Upper: 312}},
	}
}
