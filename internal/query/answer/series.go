package answer

import (
	"context"
	"encoding/json"

	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
)

// SeriesParams is what GET /v1/series takes.
type SeriesParams struct {
	Keys   []string   `query:"key,explode" doc:"A counter: 1 to 512 bytes of UTF-8 without control characters. May repeat; a comma is part of the name." example:"[\"api-1\"]"`
	Window string     `query:"window" hint:"window" doc:"In place of from and to: how far to look back, as in /v1/total." example:"7d"`
	From   api.Moment `query:"from" doc:"The start: an RFC 3339 time, a date, Unix milliseconds, or a time before now such as -7d. Default: an hour before to." example:"\"2026-11-21T09:00:00Z\""`
	To     api.Moment `query:"to" doc:"The end, not included. Default: now." example:"\"2026-11-21T09:30:00Z\""`
	Step   string     `query:"step" hint:"duration" doc:"The time from one point to the next: a whole number and a unit (s, m, h, d, w, y), rounded up to whole cells; or 1d, 1w, 1mo or 1y, the days, weeks (from Monday), months or years of tz. Default: a cell." example:"1m"`
	TZ     string     `query:"tz" hint:"a name of the IANA time zones, such as Europe/Berlin or UTC" doc:"The time zone of dates and of the steps 1d, 1w, 1mo and 1y: a name of the IANA time zones. Default: UTC." example:"Europe/Berlin"`
	Prefix string     `query:"prefix" hint:"name" emptyWith:"prefix" doc:"In place of key: the sum over all counters whose names begin like this. If it is empty, the sum of all hits, whatever the number of counters, and of erased ones, too; with group, all counters." example:"shop."`
	Group  api.Number `query:"group" hint:"a whole number from 1 to 16" doc:"With prefix: a line for each group of counters whose names have this many first parts in common, separated by . or /. 1 to 16." example:"2"`
	Limit  api.Number `query:"limit" hint:"a whole number from 1 to 1000" doc:"With group: the most groups to list, the largest by hits in the range; the others are added up. 1 to 1000. Default: 20." example:"20"`
	Of     string     `query:"of" hint:"hits or uniques" doc:"What to count: hits, or uniques for how many unique values they had. Default: hits." example:"uniques"`
	FormatParams
	FreshParams
	AllHits bool `empty:"prefix"`
}

func (p *SeriesParams) Input() *Input {
	return &Input{
		Part: web.InQuery, KeyParam: "key", WindowsParam: "window", Keys: p.Keys, Windows: oneWindow(p.Window),
		from: p.From, to: p.To, step: p.Step, tz: p.TZ, prefix: p.Prefix, all: p.AllHits, group: p.Group,
		limit: p.Limit, of: p.Of,
	}
}

func oneWindow(text string) []string {
	if text == "" {
		return nil
	}
	return []string{text}
}

// SeriesBody is what the NATS endpoint series takes: the same names.
type SeriesBody struct {
	Key    oneOrMany  `json:"key"`
	Prefix *string    `json:"prefix"`
	Group  api.Number `json:"group"`
	Limit  api.Number `json:"limit"`
	Window string     `json:"window"`
	From   api.Moment `json:"from"`
	To     api.Moment `json:"to"`
	Step   string     `json:"step"`
	TZ     string     `json:"tz"`
	Of     string     `json:"of"`
	FreshParams
}

func (b *SeriesBody) Input() *Input {
	return (&Input{
		Part: web.InBody, KeyParam: "key", WindowsParam: "window", Keys: b.Key, Windows: oneWindow(b.Window),
		from: b.From, to: b.To, step: b.Step, tz: b.TZ, group: b.Group, limit: b.Limit, of: b.Of,
	}).withPrefix(b.Prefix)
}

type oneOrMany []string

func (o *oneOrMany) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil && string(data) != "null" {
		*o = oneOrMany{one}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(o))
}

// Series checks an input and answers it. Its errors are for the client.
func (d *Service) Series(ctx context.Context, in *Input) (out SeriesLines, err error) {
	question, err := in.seriesQuestion(d.MaxKeys)
	if err != nil {
		return out, web.InputProblem(err, in.Part)
	}
	uniques, err := in.ofUniques()
	if err != nil {
		return out, web.InputProblem(err, in.Part)
	}
	if in.prefix != "" || in.group != "" {
		return d.sumSeries(ctx, in, question)
	}
	read := d.Reader.Series
	if uniques {
		read = d.Reader.UniqueSeries
	}
	keys := in.counters()
	questions := make([]window.SeriesQuestion, len(keys))
	for i, key := range keys {
		questions[i] = question
		questions[i].Counter = key
	}
	found, err := Read(ctx, d.Redis, func(ctx context.Context) ([]window.Series, error) { return read(ctx, questions) })
	if err != nil {
		return out, in.explain(err, in.seriesPeriod())
	}
	return SeriesLines{Keys: keys, Found: found, Uniques: uniques, listed: len(keys)}, nil
}

const defaultGroups = 20

// sumSeries reads names and cells in one Read, so that both have one timeout and one error.
func (d *Service) sumSeries(ctx context.Context, in *Input,
	question window.SeriesQuestion) (out SeriesLines, err error) {
	limit, err := in.limit.Parse("limit", defaultGroups, 1, maxTop)
	if err != nil {
		return out, web.InputProblem(err, in.Part)
	}
	depth := in.depth()
	group := func(string) string { return in.prefix }
	if depth > 0 {
		group = func(name string) string { return window.GroupOf(name, depth) }
	}
	var names listing
	question.Counter = in.prefix
	found, err := Read(ctx, d.Redis, func(ctx context.Context) (found read.SeriesSums, err error) {
		names, err = d.listCounters(ctx, in, nil)
		if err != nil {
			return found, err
		}
		return d.Reader.SeriesSums(ctx, question, names.upTo(d.MaxSum), group, int(limit))
	})
	if err != nil {
		return out, in.explain(err, in.seriesPeriod())
	}
	if len(names.Counters) > d.MaxSum {
		return out, names.tooMany(in, d.MaxSum)
	}
	add := func(key string, line window.Series) {
		out.Keys, out.Found = append(out.Keys, key), append(out.Found, names.applyTo(line))
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
	case len(found.Lines) == 0: // tables have a line nevertheless
		add(othersKey, found.All)
	}
	return out, nil
}
