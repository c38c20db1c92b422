package query

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/rs/zerolog"

	"tallyroll/internal/platform/plain"
	"tallyroll/internal/query/answer"
	"tallyroll/internal/web"
	"tallyroll/internal/web/access"
	"tallyroll/internal/web/api"
)

const exportPath = "/v1/export"

const (
	// exportReadTimeout is how long a client may leave sent data unread. Then its export, which holds up no
	// other, is aborted.
	exportReadTimeout = time.Minute
	// exportRetry is after how many seconds a client should retry that found no slot.
	exportRetry = "10"
)

const (
	asOfHeader, fromHeader, toHeader = "Tallyroll-As-Of", "Tallyroll-From", "Tallyroll-To"
	stepHeader                       = "Tallyroll-Step"
	completeTrailer, rowsTrailer     = "Tallyroll-Complete", "Tallyroll-Rows"
)

// exports has the operation that exports counters.
type exports struct {
	answers *answer.Service
	slots   exportSlots
	proxies *web.Networks // that are trusted
	log     zerolog.Logger
}

func (x *exports) register(a *api.API) {
	const (
		csv   = "key,from,to,hits\n/cart,2026-11-20T00:00:00Z,2026-11-20T00:15:00Z,118\n"
		lines = `{"key":"/cart","from":"2026-11-20T00:00:00Z","to":"2026-11-20T00:15:00Z","hits":118}` + "\n" +
			`{"as_of":"2026-11-21T00:05:00.2Z","from":"2026-11-20T00:00:00Z","to":"2026-11-21T00:00:00Z",` +
			`"step":"15m","complete":true,"rows":1}` + "\n"
	)
	text := &huma.Schema{Type: huma.TypeString}
	api.HandleQuery[answer.ExportParams, huma.StreamResponse](a, a.Operation(huma.Operation{
		OperationID: "get-export", Method: http.MethodGet, Path: exportPath,
		Summary: "All counters step by step, as a stream of rows",
		Description: "A row for each counter and step in which it has hits, in the order of names, of the steps that " +
			"as_of has passed. Later only hits that come late change a row. " +
			"The answer ends with the trailers " + completeTrailer + " and " + rowsTrailer + ", NDJSON also with a " +
			"last line that has the same. If it cannot be ended, the connection is cut. " +
			"Then after names the counter behind which it continues, with the same from, to and step.",
		Responses: map[string]*huma.Response{
			"200": {
				Description: "The rows, in chunks.",
				Headers:     describeExportHeaders(),
				Content: map[string]*huma.MediaType{
					"text/csv":             {Schema: text, Example: csv},
					"application/x-ndjson": {Schema: text, Example: lines},
				},
			},
			"429": a.ProblemResponse("As many exports are under way as QUERY_MAX_EXPORTS allows, half of them to one "+
				"token, or without tokens to one address.",
				tooManyExports("2 exports are under way: at most 2 are allowed at once (QUERY_MAX_EXPORTS)"),
				api.HeaderOf("Retry-After", "Seconds to wait.", 10)),
		},
	}), x.get)
}

func describeExportHeaders() map[string]*huma.Header {
	out := make(map[string]*huma.Header)
	for _, h := range [][3]string{
		{asOfHeader, "Every hit stored before this moment is in the rows.", "2026-11-21T00:05:00.2Z"},
		{fromHeader, "The beginning of the first step.", "2026-11-20T00:00:00Z"},
		{toHeader, "The end of the last step. It is before the to that was asked for if as_of is; Tallyroll-Complete " +
			"is false then.", "2026-11-21T00:00:00Z"},
		{stepHeader, "The step.", "15m"},
	} {
		for name, header := range api.HeaderOf(h[0], h[1], h[2]) {
			out[name] = header
		}
	}
	return out
}

// get returns errors only before the first row. Later the status has been sent, so it breaks the connection
// off.
func (x *exports) get(w http.ResponseWriter, r *http.Request, p *answer.ExportParams) error {
	caller := x.callerOf(r)
	if err := x.slots.acquire(caller); err != nil {
		return err
	}
	defer x.slots.release(caller)
	control := http.NewResponseController(w)
	// The request has been read. Its read deadline would later be taken for the client's end.
	_ = control.SetReadDeadline(time.Time{}) // not every writer has deadlines: those of tests do not
	e, err := x.answers.Export(r.Context(), p)
	if err != nil {
		return err
	}
	if e.Format == answer.CSV && !r.ProtoAtLeast(1, 1) {
		return web.BadInput("format", "csv needs HTTP/1.1, because over HTTP/1.0 an answer that was cut looks like a "+
			"whole one: ask for ndjson, whose last line says that it is whole, or have the proxy use HTTP/1.1 (nginx: "+
			"proxy_http_version 1.1)").Problem(web.InQuery)
	}
	h := w.Header()
	h.Set("Content-Type", e.Format.ContentType)
	h.Set(asOfHeader, e.AsOf().Format(time.RFC3339Nano))
	h.Set(fromHeader, answer.Time(e.Range.From).Format(time.RFC3339))
	h.Set(toHeader, answer.Time(e.Range.To).Format(time.RFC3339))
	h.Set(stepHeader, e.StepText())
	h.Add("Vary", "Accept")
	h.Set("X-Accel-Buffering", "no") // nginx would take in all of it, however slowly its client reads
	h.Set("Trailer", strings.Join([]string{completeTrailer, rowsTrailer}, ", "))
	if r.Method == http.MethodHead {
		return nil
	}
	if err := sendExport(r.Context(), w, control, e); err != nil {
		x.breakOff(r, e, err)
	}
	_ = control.SetWriteDeadline(time.Now().Add(exportReadTimeout)) // for the end
	h.Set(completeTrailer, strconv.FormatBool(e.Complete()))
	h.Set(rowsTrailer, strconv.FormatInt(e.Rows(), 10))
	return nil
}

// exportSlots limits concurrent exports. One caller may have half of the slots, so that none keeps others
// out.
type exportSlots struct {
	most int

	mu      sync.Mutex
	callers map[string]int // by token, or without tokens by address
	all     int
}

// acquire acquires a slot, which must be released. The error is for the client.
func (e *exportSlots) acquire(caller string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch share := (e.most + 1) / 2; {
	case e.callers[caller] >= share:
		return tooManyExports(fmt.Sprintf("%d exports of this token or address are under way: at most %d of one "+
			"caller are allowed at once, half of the %d of all (QUERY_MAX_EXPORTS)", share, share, e.most))
	case e.all >= e.most:
		return tooManyExports(fmt.Sprintf("%d exports are under way: at most %d are allowed at once "+
			"(QUERY_MAX_EXPORTS)", e.all, e.most))
	}
	if e.callers == nil {
		e.callers = make(map[string]int)
	}
	e.callers[caller]++
	e.all++
	return nil
}

func (e *exportSlots) release(caller string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all--
	if e.callers[caller]--; e.callers[caller] == 0 {
		delete(e.callers, caller)
	}
}

// tooManyExports is the 429 of an export that finds no slot.
func tooManyExports(detail string) *web.Problem {
	return web.NewProblem(http.StatusTooManyRequests, detail).WithHeader("Retry-After",
		exportRetry).OfKind(web.TooManyExports)
}

// callerOf names the caller: its token or, without tokens, its address, also behind trusted proxies.
func (x *exports) callerOf(r *http.Request) string {
	if token := access.From(r.Context()); token != nil {
		return token.Name()
	}
	address, err := x.proxies.Client(r)
	if err != nil {
		return ""
	}
	return plain.Client(address)
}

// sendExport writes an export. It reads no more from Redis while the client does not read.
func sendExport(ctx context.Context, w http.ResponseWriter, control *http.ResponseController, e *answer.Export) error {
	return e.Write(ctx, func(part []byte) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		_ = control.SetWriteDeadline(time.Now().Add(exportReadTimeout))
		_, err := w.Write(part)
		if err == nil {
			err = control.Flush()
		}
		// HTTP/2 resets the stream at the deadline, whether anything is being written or not.
		_ = control.SetWriteDeadline(time.Time{})
		return err
	})
}

// breakOff cuts the connection, because an answer that ended normally would look whole.
func (x *exports) breakOff(r *http.Request, e *answer.Export, why error) {
	var p *web.Problem
	if r.Context().Err() == nil && errors.As(why, &p) { // not if the client is gone
		x.log.Warn().Ctx(r.Context()).Str("why", p.Detail).Int64("rows", e.Rows()).Msg("export aborted")
	}
	panic(http.ErrAbortHandler)
}
