package answer

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
	"tallyroll/internal/window"
)

const FormatNames = "json or csv"

// SeriesParams is what GET /v1/series takes.
type SeriesParams struct {
	Keys   []string   `query:"key,explode" doc:"A counter: 1 to 512 bytes of UTF-8 without control characters. May repeat; a comma is part of the name." example:"[\"api-1\"]"`
	From   api.Moment `query:"from" doc:"The start: an RFC 3339 time or Unix milliseconds. Default: an hour before to." example:"\"2026-11-21T09:00:00Z\""`
	To     api.Moment `query:"to" doc:"The end, not included. Default: now." example:"\"2026-11-21T09:30:00Z\""`
	Step   string     `query:"step" doc:"The time from one point to the next: a whole number and a unit (s, m, h, d, w, y), rounded up to whole cells; or 1d, 1w, 1mo or 1y, the days, weeks (from Monday), months or years of tz. Default: a cell." example:"1m"`
	TZ     string     `query:"tz" doc:"The time zone of the steps 1d, 1w, 1mo and 1y: a name of the IANA time zones. Default: UTC." example:"Europe/Berlin"`
	Prefix string     `query:"prefix" doc:"In place of key: the sum over all counters whose names begin like this. It may be empty beside group." example:"shop."`
	Group  api.Number `query:"group" doc:"Beside prefix: a line for each group of counters whose names have so many first parts in common, parted by . or /. 1 to 16." example:"2"`
	Limit  api.Number `query:"limit" doc:"Beside group: the most groups to list, the largest by hits in the range; the others are added up. 1 to 1000. Default: 20." example:"20"`
	Of     string     `query:"of" doc:"What to count: hits, or uniques for how many different values of unique they had. Default: hits." example:"uniques"`
	Format string     `query:"format" doc:"json or csv; it takes precedence over the header Accept. Default: json." example:"csv"`

	Accept string
}

func (p *SeriesParams) Read(g api.Given) error {
	p.Keys, p.Accept = g.Query["key"], g.Header.Get("Accept")
	return readSum(g, &p.Prefix,
		api.Text("group", groupHint, (*string)(&p.Group)),
		api.Text("limit", topHint, (*string)(&p.Limit)),
		api.Text("from", api.MomentHint, (*string)(&p.From)),
		api.Text("to", api.MomentHint, (*string)(&p.To)),
		api.Text("step", api.DurationHint, &p.Step),
		api.Text("tz", zoneHint, &p.TZ),
		api.Text("of", ofHint, &p.Of),
		api.Text("format", FormatNames, &p.Format),
	)
}

func (p *SeriesParams) Input() *Input {
	return &Input{
		Part: web.InQuery, KeyParam: "key", Keys: p.Keys, from: p.From, to: p.To, step: p.Step, tz: p.TZ, prefix: p.Prefix, group: p.Group, limit: p.Limit, of: p.Of,
	}
}

// SeriesBody is what the NATS endpoint series takes: the same names.
type SeriesBody struct {
	Key    oneOrMany  `json:"key"`
	Prefix string     `json:"prefix"`
	Group  api.Number `json:"group"`
	Limit  api.Number `json:"limit"`
	From   api.Moment `json:"from"`
	To     api.Moment `json:"to"`
	Step   string     `json:"step"`
	TZ     string     `json:"tz"`
	Of     string     `json:"of"`
}

func (b *SeriesBody) Input() *Input {
	return &Input{
		Part: web.InBody, KeyParam: "key", Keys: b.Key, from: b.From, to: b.To, step: b.Step, tz: b.TZ, prefix: b.Prefix, group: b.Group, limit: b.Limit, of: b.Of,
	}
}

type oneOrMany []string

// UnmarshalJSON reads either.
func (o *oneOrMany) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil && string(data) != "null" {
		*o = oneOrMany{one}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(o))
}

// Series is a counter's or a sum's hits, or numbers of different values, step by step.
type Series struct {
	Key            string     `json:"key" doc:"The counter, or the prefix or the group of a sum." example:"api-1"`
	Of             string     `json:"of,omitempty" doc:"uniques if the points are how many different values of unique the hits had; absent if they are hits." example:"uniques"`
	Step           string     `json:"step" doc:"The time from one point to the next: the step asked for, rounded up to whole cells, or 1d, 1w, 1mo or 1y." example:"1m"`
	TZ             string     `json:"tz,omitempty" doc:"The time zone of the steps 1d, 1w, 1mo and 1y; absent with other steps." example:"Europe/Berlin"`
	AsOf           time.Time  `json:"as_of" doc:"Every hit stored before this moment is in the points. Later hits are still being counted, and so is the last point while its step reaches beyond this moment." example:"2026-11-21T10:00:00.2Z"`
	Complete       bool       `json:"complete" doc:"False if hits of the range are known to be missing, or may be: counting began, or hits were discarded unread, after it began; or it ends more than 5 seconds after as_of, because nobody has counted lately." example:"true"`
	CountingSince  time.Time  `json:"counting_since,omitzero" doc:"When counting of these streams began; absent if that is not known. Hits from before it are counted only if they carried their own time." example:"2026-10-01T08:00:00Z"`
	CompleteFrom   int64      `json:"complete_from,omitempty" doc:"The beginning, in Unix milliseconds, of the first step from which on no hit is known to be missing, or the end of the last step if there is none. Points before it may lack hits. Absent if complete is true." example:"1795255080000"`
	UnfinishedFrom int64      `json:"unfinished_from,omitempty" doc:"The beginning, in Unix milliseconds, of the first step that as_of has not passed: from there on points are still being counted. Absent if all steps are finished." example:"1795255200000"`
	Points         [][2]int64 `json:"points" doc:"For every step, the moment at which it begins, in Unix milliseconds, and its hits; zeros included. The first is the step in which counting began, or an earlier one that holds hits. The last step ends with the range and may be shorter." example:"[[1795255080000,118],[1795255140000,121]]"`
	Bounds         [][2]int64 `json:"bounds,omitempty" doc:"For each point, the least and the most hits that its step can have had by as_of. Present only if a step begins or ends inside a cell, which steps of 1d, 1w, 1mo and 1y can do; without it every point is exact. Of uniques there are always some, and they hold with confidence." example:"[[112,121],[121,121]]"`
	Confidence     float64    `json:"confidence,omitempty" doc:"How often the truth lies within the bounds of a point, at least; absent if that is certain, as it is of hits." example:"0.95"`
}

// SeriesList has the hits of several counters or groups at the same moments.
type SeriesList struct {
	Step   string       `json:"step" doc:"The step of all of them." example:"1m"`
	AsOf   time.Time    `json:"as_of" doc:"Every hit stored before this moment is in the points." example:"2026-11-21T10:00:00.2Z"`
	Series []Series     `json:"series" doc:"One for each counter, in the order asked for; or for each group that has hits, the one with most hits in the range first. All have the same moments."`
	Others *OtherGroups `json:"others,omitempty" doc:"The sum of the groups that are not listed; absent if all are."`
}

// OtherGroups is the sum of the groups that are not listed.
type OtherGroups struct {
	Groups int        `json:"groups" doc:"How many groups these are." example:"4"`
	Points [][2]int64 `json:"points" doc:"As those of the series." example:"[[1795255080000,12],[1795255140000,9]]"`
	Bounds [][2]int64 `json:"bounds,omitempty" doc:"As those of the series." example:"[[11,13],[9,9]]"`
}

// SeriesLines is an answer about series: a line for each counter, for a sum, or for each group.
type SeriesLines struct {
	Keys  []string        // what the lines are called
	Found []window.Series // the lines: at least one; all have the same steps

	Uniques bool // they are not hits, but how many different ones

	groups bool // they are groups, also if there is one; without any, Found is a line of zeros
	listed int  // how many lines are counters or groups; the last line may be the others
	others int  // how many groups that line adds up
}

// Series checks an input and answers it. Its errors are for the client.
func (d *Desk) Series(ctx context.Context, in *Input) (out SeriesLines, err error) {
	question, err := in.seriesQuestion(d.MaxKeys)
	if err != nil {
		return out, web.InputProblem(err, in.Part)
	}
	uniques, err := in.ofUniques()
	if err != nil {
		return out, web.InputProblem(err, in.Part)
	}
	if in.sums() {
		return d.sumSeries(ctx, in, question)
	}
	read := d.Reader.Series
	if uniques {
		read = d.Reader.UniqueSeries
	}
	questions := make([]window.SeriesQuestion, len(in.Keys))
	for i, key := range in.Keys {
		questions[i] = question
		questions[i].Counter = key
	}
	found, err := Ask(ctx, d.Redis, func(ctx context.Context) ([]window.Series, error) { return read(ctx, questions) })
	if bad := Mendable(err); bad != nil {
		return out, in.withoutUniques(period{}, bad)
	}
	return SeriesLines{Keys: in.Keys, Found: found, Uniques: uniques, listed: len(in.Keys)}, err
}

const ofHits, ofUniques, ofHint = "hits", "uniques", "hits or uniques"

// ofUniques reports whether a question about series is about uniques. They have no sums over counters: a
// visitor of two counters is one of each, and one of both.
func (in *Input) ofUniques() (bool, error) {
	switch in.of {
	case "", ofHits:
		return false, nil
	case ofUniques:
		if in.sums() {
			return false, web.BadInput("of", "uniques of several counters cannot be added up, because the same one can be in many of them: name counters with %s, or count all of them under one name besides", in.KeyParam)
		}
		return true, nil
	}
	return false, web.BadInput("of", "%s: allowed is %s", web.Excerpt(in.of), ofHint)
}

// JSON is one series, or a list if several counters or groups were asked for.
func (l *SeriesLines) JSON() any {
	begun := begunOf(l.Found)
	if !l.groups && l.listed == 1 {
		return l.seriesOf(l.Keys[0], l.Found[0], begun)
	}
	out := SeriesList{Step: stepText(l.Found[0]), AsOf: Time(l.Found[0].AsOf), Series: make([]Series, l.listed)}
	for i := range out.Series {
		out.Series[i] = l.seriesOf(l.Keys[i], l.Found[i], begun)
		if out.Series[i].AsOf.Before(out.AsOf) {
			out.AsOf = out.Series[i].AsOf
		}
	}
	if l.others > 0 {
		rest := l.seriesOf("", l.Found[l.listed], begun)
		out.Others = &OtherGroups{Groups: l.others, Points: rest.Points, Bounds: rest.Bounds}
	}
	return out
}

func (l *SeriesLines) seriesOf(key string, f window.Series, begun int) Series {
	out := Series{
		Key: key, Step: stepText(f), AsOf: Time(f.AsOf), Complete: f.Complete && !f.Asked.Outruns(f.AsOf),
		CountingSince: Since(f.CountingSince), Points: make([][2]int64, 0, len(f.Counts)-begun),
	}
	if steps, ok := f.Steps.(calendarSteps); ok {
		out.TZ = steps.zone.String()
	}
	for j, n := range f.Counts[begun:] {
		out.Points = append(out.Points, [2]int64{f.Start(begun + j), n})
	}
	if f.Bounds != nil {
		out.Bounds = f.Bounds[begun:]
	}
	if l.Uniques {
		out.Of, out.Confidence = ofUniques, window.UniqueConfidence
	}
	if n := f.CompleteFrom(); !f.Complete {
		out.CompleteFrom = min(f.Start(max(n, begun)), f.Range.To)
	}
	if n := f.Finished(); n < len(f.Counts) {
		out.UnfinishedFrom = f.Start(max(n, begun))
	}
	return out
}

func stepText(f window.Series) string {
	if f.Steps != nil {
		return f.Steps.String()
	}
	return window.FormatDuration(f.Step)
}

// WithoutReadTime returns the answer without its moment. Of as_of, only the number of steps passed remains.
func (l *SeriesLines) WithoutReadTime() []window.Series {
	out := slices.Clone(l.Found)
	for i := range out {
		out[i].Now, out[i].AsOf, out[i].Steps = 0, int64(out[i].Finished()), nil
	}
	return out
}

func SeriesExample() Series {
	return Series{
		Key: "api-1", Step: "1m", AsOf: time.Date(2026, 11, 21, 10, 0, 0, 2e8, time.UTC), Complete: true, CountingSince: SinceExample,
		UnfinishedFrom: 1795255200000, Points: [][2]int64{{1795255080000, 118}, {1795255140000, 121}, {1795255200000, 1}},
	}
}

// CSV returns a table with a row per step and a column per line, then two columns per line for the bounds if
// any, and last whether no hit of the step is known to be missing. All series have the same steps. A field is
// empty if its step has no value yet or still goes on, so sums have only finished steps. Empty rows are left
// out.
func (l *SeriesLines) CSV() []byte {
	keys, series := l.Keys, l.Found
	var out bytes.Buffer
	w := csv.NewWriter(&out)
	bounded := series[0].Bounds != nil
	row := []string{"time"}
	for _, key := range keys {
		row = append(row, columnName(key))
	}
	if bounded {
		for _, key := range keys {
			row = append(row, columnName(key)+" lower", columnName(key)+" upper")
		}
	}
	row = append(row, "complete")
	_ = w.Write(row) // a buffer takes everything
	begun, zone := begunOf(series), zoneOf(series[0])
	for i := begun; i < len(series[0].Counts); i++ {
		clear(row)
		row[0] = Time(series[0].Start(i)).In(zone).Format(time.RFC3339)
		counted, complete := false, true
		for j, f := range series {
			complete = complete && i >= f.CompleteFrom()
			if i >= f.Finished() {
				continue
			}
			row[1+j], counted = strconv.FormatInt(f.Counts[i], 10), true
			if bounded {
				at := 1 + len(keys) + 2*j
				row[at], row[at+1] = strconv.FormatInt(f.Bounds[i][0], 10), strconv.FormatInt(f.Bounds[i][1], 10)
			}
		}
		row[len(row)-1] = strconv.FormatBool(complete)
		if counted {
			_ = w.Write(row)
		}
	}
	w.Flush()
	return out.Bytes()
}

func begunOf(found []window.Series) int {
	begun := len(found[0].Counts)
	for _, f := range found {
		begun = min(begun, f.Begun())
	}
	return begun
}

func zoneOf(f window.Series) *time.Location {
	if steps, ok := f.Steps.(calendarSteps); ok {
		return steps.zone
	}
	return time.UTC
}

// columnName changes a counter's name so that no spreadsheet takes it for a formula. Names can come from
// strangers, such as paths of an access log, and a formula can send neighbouring cells elsewhere (OWASP ASVS
// 5.0, 1.2.10). Nothing is lost: the client gave the names, in this order. JSON has them unchanged.
func columnName(key string) string {
	if strings.ContainsRune("=+-@\uff1d\uff0b\uff0d\uff20", []rune(key)[0]) { // as wide characters, too
		return "'" + key
	}
	return key
}
