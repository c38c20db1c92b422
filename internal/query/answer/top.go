package answer

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"strconv"
	"time"

	"tallyroll/internal/web"
	"tallyroll/internal/web/access"
	"tallyroll/internal/web/api"
	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
)

// TopQuestion is what the endpoint top over NATS takes, as JSON.
type TopQuestion struct {
	Window string     `query:"window" hint:"window" json:"window" required:"true" doc:"How far to look back: a whole number and a unit (s, m, h, d, w, y)." example:"1h"`
	Limit  api.Number `query:"limit" hint:"a whole number from 1 to 1000" json:"limit" doc:"The most counters to list: 1 to 1000. Default: 20." example:"20"`
	At     api.Moment `query:"at" json:"at" doc:"The end of the window: an RFC 3339 time, a date, Unix milliseconds, or a time before now such as -7d. Default: now." example:"\"2026-11-21T10:00:00Z\""`
	Prefix string     `query:"prefix" hint:"name" emptyWith:"group" json:"prefix" doc:"Only counters whose names begin like this. It may be empty with group." example:"shop."`
	Group  api.Number `query:"group" hint:"a whole number from 1 to 16" json:"group" doc:"List groups of counters whose names have this many first parts in common, separated by . or /. 1 to 16." example:"2"`
	FreshParams
}

// TopParams is what GET /v1/top takes.
type TopParams struct {
	TopQuestion
	FormatParams
}

// TopAnswer lists the largest counters or groups.
type TopAnswer struct {
	AsOf          time.Time    `json:"as_of" doc:"Every hit stored before this moment is in the answer. 1970-01-01T00:00:00Z if some stream has not been counted yet." example:"2026-11-21T10:00:00.2Z"`
	Window        string       `json:"window" doc:"The window as it was asked for." example:"1h"`
	Complete      bool         `json:"complete" doc:"False if hits of the window are known to be missing, or may be: counting began, or hits were discarded unread, after it began; or floor is null." example:"true"`
	CountingSince time.Time    `json:"counting_since,omitzero" doc:"When counting of these streams began; absent if that is unknown." example:"2026-10-01T08:00:00Z"`
	Floor         window.Bound `json:"floor" nullable:"true" doc:"No counter, or group, with more hits in the window is missing from the list. Null if it is unknown, because no worker has counted lately: the window ends more than 5 seconds after as_of; of groups also because more than QUERY_MAX_SUM counters have the prefix." example:"37"`
	Top           []topTotal   `json:"top" doc:"The counters or groups by total, the largest first; those with the same total by name."`

	grouped bool
}

type topTotal struct {
	Key      string       `json:"key" doc:"The counter or the group." example:"api-1"`
	Counters int          `json:"counters,omitempty" doc:"Of a group: how many counters have hits in the window, or may have some." example:"12"`
	Total    int64        `json:"total" doc:"The hits in the window, as /v1/total gives them; of a group, the sum of its counters' totals, or if upper is null, of the largest ones." example:"1234"`
	Lower    int64        `json:"lower" doc:"There were at least this many hits." example:"1229"`
	Upper    window.Bound `json:"upper" nullable:"true" doc:"There were at most this many hits; null if it is unknown." example:"1241"`
}

// Top checks parameters and answers. Its errors are for the client.
func (d *Service) Top(ctx context.Context, part string, p *TopQuestion) (TopAnswer, error) {
	limit, err := p.Limit.Parse("limit", defaultTop, 1, maxTop)
	if err != nil {
		return TopAnswer{}, web.InputProblem(err, part)
	}
	if p.Window == "" {
		return TopAnswer{}, web.BadInput("window", "missing: must be %s", api.WindowHint).Problem(part)
	}
	in := &Input{Part: part, WindowsParam: "window", Windows: []string{p.Window}, at: p.At, prefix: p.Prefix,
		group: p.Group}
	periods, err := in.Periods()
	if err == nil && in.isSum() {
		err = in.checkSum()
	}
	if err != nil {
		return TopAnswer{}, web.InputProblem(err, part)
	}
	return d.top(ctx, in, periods[0], int(limit))
}

// top answers a checked input. The streams' summaries are about all counters and have no groups. So of a
// prefix, and of a token with prefixes, it reads all counters. If they are too many, the summaries have the
// largest; of other counters of the groups nothing is known then.
func (d *Service) top(ctx context.Context, in *Input, p period, limit int) (TopAnswer, error) {
	prefixes := access.From(ctx).Prefixes()
	if in.prefix != "" {
		prefixes = []string{in.prefix}
	}
	depth, whole, most := in.depth(), false, limit
	if depth > 0 {
		most = maxTop
	}
	found, err := Read(ctx, d.Redis, func(ctx context.Context) (found read.Top, err error) {
		if in.isSum() || len(prefixes) > 0 {
			found, whole, err = d.readAll(ctx, in, p)
			if whole || err != nil {
				return found, err
			}
		}
		return d.Reader.Top(ctx, p.Span, most, prefixes...)
	})
	if err != nil {
		return TopAnswer{}, in.explain(err, p)
	}
	unbounded := found.Range.Outruns(found.AsOf) || depth > 0 && !whole && found.Floor > 0
	out := TopAnswer{
		AsOf: Time(found.AsOf), Window: p.Window, CountingSince: Since(found.CountingSince),
		Complete: found.Complete && !unbounded, grouped: depth > 0,
	}
	atMost := func(n window.Bound) window.Bound {
		if unbounded {
			return window.Unbounded
		}
		return n
	}
	names, answers := make([]string, len(found.Counters)), make([]window.Answer, len(found.Counters))
	for i, c := range found.Counters {
		names[i], answers[i] = c.Counter, c.Answer
	}
	group := func(counter string) string { return counter }
	if depth > 0 {
		group = func(counter string) string { return window.GroupOf(counter, depth) }
	}
	_, all, _ := addUp(names, answers, group)
	out.Floor, out.Top = window.Bound(found.Floor), make([]topTotal, 0, min(limit, len(all)))
	for _, g := range all {
		if len(out.Top) == limit || g.Total == 0 {
			out.Floor = max(out.Floor, g.Upper)
			continue
		}
		one := topTotal{Key: g.Group, Total: g.Total, Lower: g.Lower, Upper: atMost(g.Upper)}
		if depth > 0 {
			one.Counters = g.Counters
		}
		out.Top = append(out.Top, one)
	}
	out.Floor = atMost(out.Floor)
	return out, nil
}

// readAll reads every counter with the prefix. It returns false if their names, or their cells, are too many.
func (d *Service) readAll(ctx context.Context, in *Input, p period) (out read.Top, whole bool, err error) {
	names, err := d.listCounters(ctx, in, &p.Span)
	if err != nil || len(names.Counters) > d.MaxSum {
		return out, false, err
	}
	asked := names.Counters
	if len(asked) == 0 {
		asked = in.anyCounter(ctx)
	}
	found, err := d.Reader.Answer(ctx, questionsOf(asked, []period{p}))
	var much *window.TooMuchError
	if err != nil {
		if errors.As(err, &much) {
			err = nil
		}
		return out, false, err
	}
	out = read.Top{AsOf: min(names.AsOf, found.AsOf), Range: found.Answers[0].Range, CountingSince: names.CountingSince}
	out.Complete = out.Range.From >= names.CompleteSince
	for i, a := range found.Answers {
		out.Complete = out.Complete && a.Complete
		if i < len(names.Counters) {
			out.Counters = append(out.Counters, read.TopCounter{Counter: asked[i], Answer: a})
		}
	}
	return out, true, nil
}

func (a *TopAnswer) JSON() any { return a }

// CSV returns a table with a row per counter, or per group with how many counters have hits in it. upper is
// empty if it is unknown.
func (a *TopAnswer) CSV() []byte {
	var out bytes.Buffer
	w := csv.NewWriter(&out)
	write := func(key, counters string, numbers ...string) {
		row := []string{key}
		if a.grouped {
			row = append(row, counters)
		}
		_ = w.Write(append(row, numbers...)) // a buffer takes everything
	}
	write("key", "counters", "total", "lower", "upper")
	for _, t := range a.Top {
		upper := ""
		if t.Upper < window.Unbounded {
			upper = strconv.FormatInt(int64(t.Upper), 10)
		}
		write(columnName(t.Key), strconv.Itoa(t.Counters), strconv.FormatInt(t.Total, 10),
			strconv.FormatInt(t.Lower, 10), upper)
	}
	w.Flush()
	return out.Bytes()
}

func TopExample() TopAnswer {
	return TopAnswer{
		AsOf: time.Date(2026, 11, 21, 10, 0, 0, 2e8, time.UTC), Window: "1h", Complete: true,
		CountingSince: SinceExample, Floor: 37,
		Top: []topTotal{{Key: "api-1", Total: 1234, Lower: 1229, Upper: 1241},
			{Key: "/cart", Total: 311, Lower: 309, Upper: 312}},
	}
}
