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

// FormatNames are the formats of a series over HTTP.
const FormatNames = "json, csv or svg"

// SeriesParams is what GET /v1/series takes.
type SeriesParams struct {
	Keys   []string   `query:"key,explode" required:"true" doc:"A counter: 1 to 512 bytes of UTF-8 without control characters. May repeat; a comma is part of the name." example:"[\"api-1\"]"`
	From   api.Moment `query:"from" doc:"The start: an RFC 3339 time or Unix milliseconds. Default: an hour before to." example:"\"2026-11-21T09:00:00Z\""`
	To     api.Moment `query:"to" doc:"The end, not included. Default: now." example:"\"2026-11-21T09:30:00Z\""`
	Step   string     `query:"step" doc:"The time from one point to the next: a whole number and a unit (s, m, h, d, w), rounded up to whole cells; or 1d, 1w or 1mo, the days, weeks (from Monday) or months of tz. Default: a cell." example:"1m"`
	TZ     string     `query:"tz" doc:"The time zone of the steps 1d, 1w and 1mo: a name of the IANA time zones. Default: UTC." example:"Europe/Berlin"`
	Format string     `query:"format" doc:"json, csv or svg; it takes precedence over the header Accept. Default: json." example:"svg"`
	Width  string     `query:"width" doc:"Of a chart, in pixels: 200 to 2000. Default: 800." example:"800"`
	Height string     `query:"height" doc:"Of a chart, in pixels: 100 to 1200. Default: 300." example:"300"`

	Accept string
}

func (p *SeriesParams) Read(g api.Given) error {
	p.Keys, p.Accept = g.Query["key"], g.Header.Get("Accept")
	return g.Singles(
		api.Text("from", api.MomentHint, (*string)(&p.From)),
		api.Text("to", api.MomentHint, (*string)(&p.To)),
		api.Text("step", api.DurationHint, &p.Step),
		api.Text("tz", zoneHint, &p.TZ),
		api.Text("format", FormatNames, &p.Format),
		api.Text("width", api.PixelsHint, &p.Width),
		api.Text("height", api.PixelsHint, &p.Height),
	)
}

func (p *SeriesParams) Input() *Input {
	return &Input{Part: web.InQuery, KeyParam: "key", Keys: p.Keys, from: p.From, to: p.To, step: p.Step, tz: p.TZ}
}

// SeriesBody is what the endpoint series takes over NATS: the same names.
type SeriesBody struct {
	Key  oneOrMany  `json:"key"`
	From api.Moment `json:"from"`
	To   api.Moment `json:"to"`
	Step string     `json:"step"`
	TZ   string     `json:"tz"`
}

func (b *SeriesBody) Input() *Input {
	return &Input{Part: web.InBody, KeyParam: "key", Keys: b.Key, from: b.From, to: b.To, step: b.Step, tz: b.TZ}
}

// oneOrMany is a string or a list of them.
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

// Series is the hits of one counter step by step.
type Series struct {
	Key            string     `json:"key" doc:"The counter." example:"api-1"`
	Step           string     `json:"step" doc:"The time from one point to the next: the step asked for, rounded up to whole cells, or 1d, 1w or 1mo." example:"1m"`
	TZ             string     `json:"tz,omitempty" doc:"The time zone of the steps 1d, 1w and 1mo; absent with other steps." example:"Europe/Berlin"`
	AsOf           time.Time  `json:"as_of" doc:"Every hit stored before this moment is in the points. Later hits are still being counted, and so is the last point while its step reaches beyond this moment." example:"2026-11-21T10:00:00.2Z"`
	Complete       bool       `json:"complete" doc:"False if hits of the range are known to be missing, or may be: counting began, or hits were discarded unread, after it began; or it ends more than 5 seconds after as_of, because nobody has counted lately." example:"true"`
	CountingSince  time.Time  `json:"counting_since,omitzero" doc:"When counting of these streams began; absent if that is not known. Hits from before it are counted only if they carried their own time." example:"2026-10-01T08:00:00Z"`
	CompleteFrom   int64      `json:"complete_from,omitempty" doc:"The beginning, in Unix milliseconds, of the first step from which on no hit is known to be missing, or the end of the last step if there is none. Points before it may lack hits. Absent if complete is true." example:"1795255080000"`
	UnfinishedFrom int64      `json:"unfinished_from,omitempty" doc:"The beginning, in Unix milliseconds, of the first step that as_of has not passed: from there on points are still being counted. Absent if all steps are finished." example:"1795255200000"`
	Points         [][2]int64 `json:"points" doc:"For every step, the moment at which it begins, in Unix milliseconds, and its hits; zeros included. The first is the step in which counting began, or an earlier one that holds hits. The last step ends with the range and may be shorter." example:"[[1795255080000,118],[1795255140000,121]]"`
	Bounds         [][2]int64 `json:"bounds,omitempty" doc:"For each point, the least and the most hits that its step can have had by as_of. Present only if a step begins or ends inside a cell, which steps of 1d, 1w and 1mo can do; without it every point is exact." example:"[[112,121],[121,121]]"`
}

// SeriesList has the hits of several counters, with the same moments.
type SeriesList struct {
	Series []Series `json:"series" doc:"One for each counter, in the order asked for, with the same moments."`
}

// Series checks an input and answers it. Its errors are for the client.
func (d *Desk) Series(ctx context.Context, in *Input) ([]window.Series, error) {
	questions, err := in.seriesQuestions(d.MaxKeys)
	if err != nil {
		return nil, web.InputProblem(err, in.Part)
	}
	found, err := Ask(ctx, d.Redis, func(ctx context.Context) ([]window.Series, error) { return d.Reader.Series(ctx, questions) })
	if bad := Mendable(err); bad != nil {
		return nil, in.unanswerable(period{}, bad)
	}
	return found, err
}

// SeriesJSON is one series, or a list if several were asked for.
func SeriesJSON(keys []string, found []window.Series) any {
	out, begun := SeriesList{Series: make([]Series, len(keys))}, begunOf(found)
	for i, f := range found {
		one := Series{
			Key: keys[i], Step: StepText(f), AsOf: Time(f.AsOf), Complete: f.Complete && !f.Asked.Outruns(f.AsOf),
			CountingSince: Since(f.CountingSince), Points: make([][2]int64, 0, len(f.Counts)-begun),
		}
		if steps, ok := f.Steps.(calendarSteps); ok {
			one.TZ = steps.zone.String()
		}
		for j, n := range f.Counts[begun:] {
			one.Points = append(one.Points, [2]int64{f.Start(begun + j), n})
		}
		if f.Bounds != nil {
			one.Bounds = f.Bounds[begun:]
		}
		if n := f.CompleteFrom(); !f.Complete {
			one.CompleteFrom = min(f.Start(max(n, begun)), f.Range.To)
		}
		if n := f.Finished(); n < len(f.Counts) {
			one.UnfinishedFrom = f.Start(max(n, begun))
		}
		out.Series[i] = one
	}
	if len(keys) == 1 {
		return out.Series[0]
	}
	return out
}

// StepText is how an answer writes the step.
func StepText(f window.Series) string {
	if f.Steps != nil {
		return f.Steps.String()
	}
	return window.FormatDuration(f.Step)
}

// WithoutReadTime returns the contents of an answer without the moment at which it was read. Of
// as_of, only the number of steps that it has passed remains.
func WithoutReadTime(found []window.Series) []window.Series {
	out := slices.Clone(found)
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

// SeriesCSV returns a table with a row per step and a column per counter, then two columns per counter for the
// bounds if the series have some, and last whether no hit of the step is known to be missing. All series have the
// same steps. A field is empty if the step says nothing yet or still goes on, so the sum of a
// column has only finished steps. Rows with only empty fields are left out.
func SeriesCSV(keys []string, series []window.Series) []byte {
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
	begun, zone := begunOf(series), ZoneOf(series[0])
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

// begunOf returns the first step that says something of any of the counters. All series have the same steps.
func begunOf(found []window.Series) int {
	begun := len(found[0].Counts)
	for _, f := range found {
		begun = min(begun, f.Begun())
	}
	return begun
}

// ZoneOf is the zone in which the steps of a series lie.
func ZoneOf(f window.Series) *time.Location {
	if steps, ok := f.Steps.(calendarSteps); ok {
		return steps.zone
	}
	return time.UTC
}

// columnName changes a counter's name so that no spreadsheet takes it for a formula. Names can
// come from strangers, such as the paths of an access log, and a formula can send the
// cells beside it elsewhere (OWASP ASVS 5.0, 1.2.10). Nothing is lost: the client gave the
// names, and the columns are in that order. Programs that need the unchanged names can use
// JSON.
func columnName(key string) string {
	if strings.ContainsRune("=+-@\uff1d\uff0b\uff0d\uff20", []rune(key)[0]) { // as wide characters, too
		return "'" + key
	}
	return key
}
