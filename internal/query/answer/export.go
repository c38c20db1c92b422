package answer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
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
	From   api.Moment `query:"from" doc:"The start: an RFC 3339 time, Unix milliseconds, or a time before now such as -7d, widened to whole steps. Default: a day before to." example:"\"2026-11-20T00:00:00Z\""`
	To     api.Moment `query:"to" doc:"The end, not included; steps that as_of has not passed are left out. Default: as_of, or, without from, the last midnight of UTC that as_of has passed." example:"\"2026-11-21T00:00:00Z\""`
	Step   string     `query:"step" hint:"duration" doc:"The time that a row is about: a cell of a tier, or several of which a day is a whole number. Steps begin at multiples of their length since 1970. Default: a cell of the finest tier that reaches back to from." example:"15m"`
	Prefix string     `query:"prefix" hint:"name" doc:"What the names begin with. Default: all names." example:"shop."`
	Format string     `query:"format" hint:"csv or ndjson" doc:"csv or ndjson; it takes precedence over the header Accept. Default: csv." example:"csv"`
	Resume string     `query:"resume" hint:"a token of an export" doc:"Continues an export: the header Tallyroll-Resume of its answer, or resume of a line of its NDJSON. What it holds need not be given again." example:"a1B2"`
	After  string     `query:"after" hint:"name" doc:"Begins behind this counter." example:"shop.checkout.eu"`

	Accept string `header:"Accept" hidden:"true"`
}

const ExportFormats = "csv or ndjson"

func (p *ExportParams) isNDJSON() (bool, error) {
	switch p.Format {
	case "csv", "ndjson":
		return p.Format == "ndjson", nil
	case "":
		return strings.Contains(p.Accept, "ndjson"), nil
	}
	return false, web.BadInput("format", "%s is not a format: must be %s", web.Excerpt(p.Format), ExportFormats)
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
	if p.From != "" {
		if q.From, err = p.From.Milli("from"); err != nil {
			return q, err
		}
	}
	if q.To, err = parseEnd("to", p.To); err != nil {
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
	isNDJSON   bool
	first      read.ExportPlace
	page       read.ExportPage
	complete   bool // as far as pages have been read
	rows       int64
	sinceToken int // rows since the last line with a token

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
	if e.isNDJSON, err = p.isNDJSON(); err != nil {
		return nil, web.InputProblem(err, web.InQuery)
	}
	var at read.ExportPlace
	var resumed read.Export
	if p.Resume != "" {
		resumed, at, err = readToken(d.Namespace, p, q)
		if err != nil {
			return nil, web.InputProblem(err, web.InQuery)
		}
		q = read.ExportQuestion{Prefix: resumed.Prefix, From: resumed.Range.From, To: resumed.Range.To,
			Step: resumed.Step}
	}
	e.Export = resumed
	if p.Resume == "" || q.From < q.To { // otherwise there is nothing to go on with
		e.Export, err = Read(ctx, d.Redis, func(ctx context.Context) (read.Export, error) {
			return d.Reader.BeginExport(ctx, q)
		})
		if err != nil {
			return nil, exportProblem(err)
		}
	}
	if p.Resume != "" {
		if e.Export.Range != resumed.Range {
			return nil, reopenedProblem()
		}
		e.Cut = resumed.Cut
	}
	if p.After != "" {
		if err := api.CheckKey("after", p.After); err != nil {
			return nil, web.InputProblem(err, web.InQuery)
		}
		if at.Counter < p.After {
			at = read.ExportPlace{Counter: p.After}
		}
	}
	e.first, e.page.Next = at, at
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

func (e *Export) ContentType() string {
	if e.isNDJSON {
		return "application/x-ndjson"
	}
	return formatCSV
}

const formatCSV = "text/csv; charset=utf-8"

// StepText is the step, as answers write it.
func (e *Export) StepText() string { return human.FormatDuration(e.Step) }

// AsOf is the moment up to which the first page was counted.
func (e *Export) AsOf() time.Time { return Time(e.page.AsOf) }

// IsNDJSON reports whether the format is NDJSON, whose last line proves that it is whole.
func (e *Export) IsNDJSON() bool { return e.isNDJSON }

func (e *Export) Rows() int64 { return e.rows }

// Complete reports whether no hit of the requested range is known to be missing, as far as it has been read.
func (e *Export) Complete() bool { return e.complete && !e.Cut }

// Write writes the export as text in parts of some ten kilobytes, and reads page after page. It ends with the
// first error: one of write as it is, one of reading as the problem that Export would return.
func (e *Export) Write(ctx context.Context, write func(part []byte) error) error {
	const part = 32 << 10
	if !e.isNDJSON {
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
		e.mark()
		if err := e.flush(write); err != nil {
			return err
		}
		if err := e.read(ctx); err != nil {
			return err
		}
	}
	if e.isNDJSON {
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
		if e.isNDJSON {
			e.key = string(api.Encode(row.Counter))
		}
	}
	if from := row.From; from != e.last.From+e.Step.Milliseconds() || e.to == nil {
		e.to = appendTime(e.to[:0], from)
	}
	e.last = row
	e.rows++
	e.sinceToken++
	between := [...]string{"", ",", ",", ",", "\n"}
	if e.isNDJSON {
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

// tokenEvery is the least number of NDJSON rows from one line with a token to the next.
const tokenEvery = 10_000

// mark adds a line with a token, if one is due. It follows whole pages, so resuming repeats nothing.
func (e *Export) mark() {
	if e.isNDJSON && e.sinceToken >= tokenEvery {
		e.sinceToken = 0
		e.text = append(append(append(e.text, `{"resume":"`...), e.token(e.page.Next)...), "\"}\n"...)
	}
}

// token is the content of a token. It grants nothing: its bearer could ask the same. A checksum detects cuts.
type token struct {
	Version   int    `json:"v"`
	Namespace string `json:"n"`
	Prefix    string `json:"p,omitempty"`
	From      int64  `json:"f"` // Unix milliseconds
	To        int64  `json:"t"`
	Step      int64  `json:"s"` // milliseconds
	Cut       bool   `json:"x,omitempty"`
	Counter   string `json:"c,omitempty"`
	Inside    int64  `json:"i,omitempty"`
}

const tokenVersion, tokenSum = 1, 6

var tokenText = base64.RawURLEncoding.Strict()

// Token resumes this answer from its start, with the same range.
func (e *Export) Token() string { return e.token(e.first) }

func (e *Export) token(at read.ExportPlace) string {
	return token{
		tokenVersion, e.service.Namespace, e.Prefix, e.Range.From, e.Range.To, e.Step.Milliseconds(), e.Cut, at.Counter,
		at.Inside,
	}.String()
}

func (t token) String() string {
	body := api.Encode(t)
	sum := sha256.Sum256(body)
	return tokenText.EncodeToString(append(sum[:tokenSum], body...))
}

func parseToken(text string) (t token, ok bool) {
	all, err := tokenText.DecodeString(text)
	if err != nil || len(all) < tokenSum {
		return token{}, false
	}
	sum := sha256.Sum256(all[tokenSum:])
	if !bytes.Equal(sum[:tokenSum], all[:tokenSum]) || json.Unmarshal(all[tokenSum:], &t) != nil {
		return token{}, false
	}
	return t, t.Version == tokenVersion && t.Step > 0 && t.From <= t.To && t.From%t.Step == 0 && t.To%t.Step == 0
}

// readToken returns the export that a token continues, and the place. Other parameters must be that export's.
func readToken(namespace string, p *ExportParams, q read.ExportQuestion) (read.Export, read.ExportPlace, error) {
	t, ok := parseToken(p.Resume)
	if !ok {
		return read.Export{}, read.ExportPlace{}, web.BadInput("resume", "%s is not a token of an export of this "+
			"release: "+
			"send the whole of Tallyroll-Resume, or of resume in the last such line", web.Excerpt(p.Resume))
	}
	down := func(milli int64) int64 { return milli - milli%t.Step }
	for _, other := range []struct {
		is          bool
		param, text string
	}{
		{t.Namespace != namespace, "resume", "the namespace " + t.Namespace},
		{p.Prefix != "" && p.Prefix != t.Prefix, "prefix", "the prefix " + web.Excerpt(t.Prefix)},
		{p.Step != "" && q.Step.Milliseconds() != t.Step, "step", "the step " +
			human.FormatDuration(time.Duration(t.Step)*time.Millisecond)},
		{p.From != "" && down(q.From) != t.From, "from", "from " + window.Moment(t.From)},
		{p.To != "" && (t.Cut && q.To <= t.To || !t.Cut && down(q.To+t.Step-1) != t.To), "to",
			"to " + window.Moment(t.To)},
	} {
		if other.is {
			return read.Export{}, read.ExportPlace{}, web.BadInput(other.param, "the token of resume belongs to an "+
				"export with %s: leave it out, or ask without resume", other.text)
		}
	}
	return read.Export{
		Prefix: t.Prefix, Range: window.Range{From: t.From, To: t.To}, Step: time.Duration(t.Step) * time.Millisecond,
		Cut: t.Cut,
	}, read.ExportPlace{Counter: t.Counter, Inside: t.Inside}, nil
}
