package answer

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"tallyroll/internal/platform/human"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
)

// ExportParams is what GET /v1/export takes.
type ExportParams struct {
	From   api.Moment `query:"from" doc:"The start: an RFC 3339 time, a date, Unix milliseconds, or a time before now such as -7d, widened to whole steps. Default: a day before to." example:"\"2026-11-20T00:00:00Z\""`
	To     api.Moment `query:"to" doc:"The end, not included; steps that as_of has not passed are left out. Default: as_of, or, without from, the last midnight of UTC that as_of has passed." example:"\"2026-11-21T00:00:00Z\""`
	Step   string     `query:"step" hint:"duration" doc:"The time that a row is about: a cell of a tier, or several of which a day is a whole number. Steps begin at multiples of their length since 1970. Default: a cell of the finest tier that reaches back to from." example:"15m"`
	Prefix string     `query:"prefix" hint:"name" doc:"What the names begin with. Default: all names." example:"shop."`
	Format string     `query:"format" hint:"csv or ndjson" doc:"csv or ndjson; it takes precedence over the header Accept. Default: csv." example:"csv"`
	After  string     `query:"after" hint:"name" doc:"Begins behind this counter. An export that was interrupted goes on behind the last whole one, with the from, to and step of its headers." example:"shop.checkout.eu"`

	Accept string `header:"Accept" hidden:"true"`
}

// question leaves the checks of step and range that need the layout to the reader, because only Redis has the
// tiers.
func (p *ExportParams) question() (q read.ExportQuestion, err error) {
	q = read.ExportQuestion{Prefix: p.Prefix, From: window.Now, To: window.Now}
	if p.Prefix != "" {
		if err := api.CheckKey("prefix", p.Prefix); err != nil {
			return q, err
		}
	}
	utc := &Input{}
	if q.From, err = utc.parseEnd("from", p.From); err != nil {
		return q, err
	}
	if q.To, err = utc.parseEnd("to", p.To); err != nil {
		return q, err
	}
	if q.From != window.Now && areAbsolute(q.From, q.To) && q.From >= q.To {
		return q, web.BadInput("from", "%v", &window.EmptyError{Range: window.Range{From: q.From, To: q.To}})
	}
	if p.Step != "" {
		q.Step, err = api.ParseDuration("step", p.Step)
	}
	return q, err
}

// Export is an export under way: the page of rows that has been read, and the rest.
type Export struct {
	service *Service
	read.Export
	Format   Format
	page     read.ExportPage
	complete bool // as far as pages have been read
	rows     int64

	text []byte // not handed over yet
	last read.ExportRow
	key  string // the counter of the last row as text
	to   []byte // the end of the last row as text
}

// Export checks parameters and reads the first page, so that refusals precede the answer.
func (d *Service) Export(ctx context.Context, p *ExportParams) (*Export, error) {
	q, err := p.question()
	if err != nil {
		return nil, web.InputProblem(err, web.InQuery)
	}
	e := &Export{service: d, complete: true}
	if e.Format, err = chooseFormat(p.Format, p.Accept, CSV, NDJSON); err != nil {
		return nil, web.InputProblem(err, web.InQuery)
	}
	if p.After != "" {
		if err := api.CheckKey("after", p.After); err != nil {
			return nil, web.InputProblem(err, web.InQuery)
		}
	}
	e.Export, err = Read(ctx, d.Redis, func(ctx context.Context) (read.Export, error) {
		return d.Reader.BeginExport(ctx, q)
	})
	if err != nil {
		return nil, exportProblem(err)
	}
	e.page.Next = read.ExportPlace{Counter: p.After}
	return e, e.read(ctx)
}

// exportProblem blames a parameter: the reader knows moments and steps, but not what the request calls them.
func exportProblem(err error) error {
	bad := ClientError(err)
	if bad == nil {
		return err
	}
	param := "from"
	var step *read.StepError
	var ahead *window.AheadError
	switch {
	case errors.As(bad, &step):
		param = "step"
	case errors.As(bad, &ahead):
		param = "to"
	}
	return web.BadInput(param, "%v", bad).Problem(web.InQuery)
}

// read keeps a reopened export apart from Redis's errors, which would be logged and have the health checked.
func (e *Export) read(ctx context.Context) error {
	reopened := false
	page, err := Read(ctx, e.service.Redis, func(ctx context.Context) (read.ExportPage, error) {
		page, err := e.service.Reader.ExportPage(ctx, e.Export, e.page.Next)
		reopened = errors.Is(err, read.ErrReopened)
		if reopened {
			err = nil // Redis is well
		}
		return page, err
	})
	if reopened {
		return reopenedProblem()
	}
	if err != nil {
		return exportProblem(err)
	}
	e.page, e.complete = page, e.complete && page.Complete
	return nil
}

func reopenedProblem() *web.Problem {
	return web.RetryLater("as_of has gone back behind the end of the export, because Redis has lost commits or a "+
		"stream has come back: workers are counting again; go on in a minute", "60")
}

// StepText is the step, as answers write it.
func (e *Export) StepText() string { return human.FormatDuration(e.Step) }

// AsOf is the moment up to which the first page was counted.
func (e *Export) AsOf() time.Time { return Time(e.page.AsOf) }

func (e *Export) Rows() int64 { return e.rows }

// Complete reports whether no hit of the requested range is known to be missing, as far as it has been read.
func (e *Export) Complete() bool { return e.complete && !e.Cut }

// Write writes the export as text in parts of some ten kilobytes, and reads page after page. It ends with the
// first error: one of write as it is, one of reading as the problem that Export would return.
func (e *Export) Write(ctx context.Context, write func(part []byte) error) error {
	const part = 32 << 10
	if e.Format == CSV {
		e.text = append(e.text, "key,from,to,hits\n"...)
	}
	for {
		for _, row := range e.page.Rows {
			e.add(row)
			if len(e.text) >= part {
				if err := e.flush(write); err != nil {
					return err
				}
			}
		}
		if !e.page.More {
			break
		}
		if err := e.flush(write); err != nil {
			return err
		}
		if err := e.read(ctx); err != nil {
			return err
		}
	}
	if e.Format == NDJSON {
		e.text = append(append(e.text, api.Encode(ExportEnd{
			AsOf: e.AsOf(), From: Time(e.Range.From), To: Time(e.Range.To), Step: e.StepText(), Complete: e.Complete(),
			Rows: e.rows,
		})...), '\n')
	}
	return e.flush(write)
}

// ExportEnd is the last line of an export as NDJSON.
type ExportEnd struct {
	AsOf     time.Time `json:"as_of"`
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
	Step     string    `json:"step"`
	Complete bool      `json:"complete"`
	Rows     int64     `json:"rows"`
}

func (e *Export) flush(write func([]byte) error) error {
	if len(e.text) == 0 {
		return nil
	}
	err := write(e.text)
	e.text = e.text[:0]
	return err
}

// add appends a row. Most rows have the counter of the previous one, and begin where that ends.
func (e *Export) add(row read.ExportRow) {
	if row.Counter != e.last.Counter {
		e.key = csvField(row.Counter)
		if e.Format == NDJSON {
			e.key = string(api.Encode(row.Counter))
		}
	}
	if from := row.From; from != e.last.From+e.Step.Milliseconds() || e.to == nil {
		e.to = appendTime(e.to[:0], from)
	}
	e.last = row
	e.rows++
	between := [...]string{"", ",", ",", ",", "\n"}
	if e.Format == NDJSON {
		between = [...]string{`{"key":`, `,"from":"`, `","to":"`, `","hits":`, "}\n"}
	}
	out := append(append(e.text, between[0]...), e.key...)
	out = append(append(out, between[1]...), e.to...)
	e.to = appendTime(e.to[:0], row.From+e.Step.Milliseconds())
	out = append(append(out, between[2]...), e.to...)
	out = strconv.AppendInt(append(out, between[3]...), row.Hits, 10)
	e.text = append(out, between[4]...)
}

func appendTime(to []byte, milli int64) []byte { return Time(milli).AppendFormat(to, time.RFC3339) }

// csvField writes a name as RFC 4180 does, even if a spreadsheet would take it for a formula (see
// columnName), because readers of an export must find the counter again.
func csvField(name string) string {
	if !strings.ContainsAny(name, `",`) && name == strings.TrimSpace(name) && name != `\.` { // psql's end of data
		return name
	}
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}
