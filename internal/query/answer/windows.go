package answer

import (
	"context"

	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
	"tallyroll/internal/window"
)

// WindowsParams is what GET /v1/uniques takes, and GET /v1/total among others.
type WindowsParams struct {
	Keys    []string   `query:"key,explode" doc:"A counter: 1 to 512 bytes of UTF-8 without control characters. May repeat; a comma is part of the name." example:"[\"api-1\"]"`
	Windows []string   `query:"window,explode" doc:"How far to look back: a whole number and a unit (s, m, h, d, w, y); or today, yesterday, week (since Monday), month or year, in the zone tz. May repeat, at most 8 times." example:"[\"24h\"]"`
	At      api.Moment `query:"at" doc:"The end of the windows: an RFC 3339 time, a date, Unix milliseconds, or a time before now such as -7d. Default: now." example:"\"2026-11-21T10:00:00Z\""`
	From    api.Moment `query:"from" doc:"In place of window: the start of a range." example:"\"2026-11-21T09:00:00Z\""`
	To      api.Moment `query:"to" doc:"With from: the end of the range, not included. Default: now." example:"\"2026-11-21T09:30:00Z\""`
	TZ      string     `query:"tz" hint:"a name of the IANA time zones, such as Europe/Berlin or UTC" doc:"With dates, today, yesterday, week, month and year: the IANA time zone whose midnight counts. Default: UTC." example:"Europe/Berlin"`
	FreshParams
}

func (p *WindowsParams) Input() *Input {
	return &Input{Part: web.InQuery, KeyParam: "key", WindowsParam: "window", Keys: p.Keys, Windows: p.Windows,
		at: p.At, from: p.From, to: p.To, hasCalendars: true, tz: p.TZ}
}

// TotalParams is what GET /v1/total takes.
type TotalParams struct {
	WindowsParams
	Prefix  string     `query:"prefix" hint:"name" emptyWith:"prefix" doc:"In place of key: the sum over all counters whose names begin like this. If it is empty, the sum of all hits, whatever the number of counters, and of erased ones, too; with group, all counters." example:"shop."`
	Group   api.Number `query:"group" hint:"a whole number from 1 to 16" doc:"With prefix: also the sums over the counters whose names have this many first parts in common, separated by . or /. 1 to 16." example:"2"`
	AllHits bool       `empty:"prefix"`
}

func (p *TotalParams) Input() *Input {
	in := p.WindowsParams.Input()
	in.prefix, in.group, in.all = p.Prefix, p.Group, p.AllHits
	return in
}

// TotalBody is what POST /v1/total takes.
type TotalBody struct {
	Keys    []string   `json:"keys,omitempty" minItems:"1" doc:"Counters, each of 1 to 512 bytes of UTF-8 without control characters." example:"[\"api-1\",\"/cart\"]"`
	Windows []string   `json:"windows,omitempty" maxItems:"8" doc:"How far to look back: whole numbers and units (s, m, h, d, w, y); or today, yesterday, week (since Monday), month or year, in the zone tz." example:"[\"1h\",\"24h\"]"`
	At      api.Moment `json:"at,omitempty" doc:"The end of the windows: an RFC 3339 time, a date, Unix milliseconds, or a time before now such as -7d. Default: now." example:"\"2026-11-21T10:00:00Z\""`
	From    api.Moment `json:"from,omitempty" doc:"In place of windows: the start of a range." example:"\"2026-11-21T09:00:00Z\""`
	To      api.Moment `json:"to,omitempty" doc:"With from: the end of the range, not included. Default: now." example:"1795255200000"`
	Prefix  *string    `json:"prefix,omitempty" doc:"In place of keys: the sum over all counters whose names begin like this. If it is empty, the sum of all hits, whatever the number of counters, and of erased ones, too; with group, all counters." example:"shop."`
	Group   api.Number `json:"group,omitempty" doc:"With prefix: also the sums over the counters whose names have this many first parts in common, separated by . or /. 1 to 16." example:"2"`
	TZ      string     `json:"tz,omitempty" doc:"With dates, today, yesterday, week, month and year: the IANA time zone whose midnight counts. Default: UTC." example:"Europe/Berlin"`
	FreshParams
}

func (b *TotalBody) Input() *Input {
	return (&Input{
		Part: web.InBody, KeyParam: "keys", WindowsParam: "windows", Keys: b.Keys, Windows: b.Windows, at: b.At,
		from: b.From, to: b.To,
		hasCalendars: true, tz: b.TZ, group: b.Group,
	}).withPrefix(b.Prefix)
}

// Totals checks an input and answers it. Its errors are for the client.
func (d *Service) Totals(ctx context.Context, in *Input) (out TotalAnswer, past bool, err error) {
	periods, err := in.totalPeriods(d.MaxKeys)
	if err != nil {
		return out, false, web.InputProblem(err, in.Part)
	}
	if in.prefix != "" || in.group != "" {
		return d.sumTotals(ctx, in, periods)
	}
	questions := questionsOf(in.counters(), periods)
	found, err := Read(ctx, d.Redis, func(ctx context.Context) (window.Answers, error) {
		return d.Reader.Answer(ctx, questions)
	})
	if err != nil {
		return out, false, in.explain(err, periods...)
	}
	out = TotalAnswer{AsOf: Time(found.AsOf), Totals: make([]Total, len(questions))}
	for i, q := range questions {
		out.Totals[i] = TotalOf(q.Counter, periods[i%len(periods)].Window, found.Answers[i], found.AsOf)
	}
	return out, endedBefore(found.Answers, found.Now), nil
}
