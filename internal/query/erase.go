package query

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/rs/zerolog"

	"tallyroll/internal/query/answer"
	"tallyroll/internal/web"
	"tallyroll/internal/web/access"
	"tallyroll/internal/web/api"
)

// Erasing is whether the service erases counters; the zero value is off.
type Erasing bool

func (e *Erasing) UnmarshalText(text []byte) error {
	switch string(text) {
	case "on", "off":
		*e = string(text) == "on"
		return nil
	}
	return errors.New("on or off")
}

// erasures has the operation that erases counters.
type erasures struct {
	on      Erasing
	answers *answer.Service
	audit   *auditLog
}

func (e *erasures) register(a *api.API) {
	op := a.Operation(huma.Operation{
		OperationID: "delete-counters", Method: http.MethodDelete, Path: "/v1/counters",
		Summary: "Erase a counter, or all with a prefix",
		Description: "Removes the hits that are counted, the names and the entries in lists. Hits that are stored " +
			"and not counted yet, and later ones, count from zero. " +
			"Needs QUERY_ERASE=on. If the answer is lost, ask again: what is left is still listed.",
		Responses: api.SuccessOnly("It is erased.", answer.EraseAnswer{Erased: 1}),
	})
	op.Responses[strconv.Itoa(http.StatusForbidden)] = a.ProblemResponse(
		"The service erases nothing: QUERY_ERASE is off. Or a browser sends this for a page of another origin, or the "+
			"host is not one of the service's.", eraseOff(), nil)
	op.Responses[strconv.Itoa(http.StatusConflict)] = a.ProblemResponse(
		"More counters begin with prefix than confirm allows. Nothing is erased.",
		answer.NotConfirmedProblem("shop.", 12, 11), nil)
	api.HandleQuery[answer.EraseParams, api.JSONOutput[answer.EraseAnswer]](a, op, e.delete)
}

func eraseOff() *web.Problem {
	return web.NewProblem(http.StatusForbidden, "this service erases nothing (QUERY_ERASE=off)").OfKind(web.EraseOff)
}

// delete logs also what an erasure that failed has erased.
func (e *erasures) delete(w http.ResponseWriter, r *http.Request, p *answer.EraseParams) error {
	if !e.on {
		return eraseOff()
	}
	// Many counters take longer than other answers, and the request has been read.
	control := http.NewResponseController(w)
	_, _ = control.SetReadDeadline(time.Time{}), control.SetWriteDeadline(time.Time{}) // not every writer has deadlines
	out, err := e.answers.Erase(r.Context(), p)
	if err == nil || out.Erased > 0 {
		e.log(r, p, out, err)
	}
	if err != nil {
		return err
	}
	(&api.JSONOutput[answer.EraseAnswer]{Body: out}).Write(w)
	return nil
}

func (e *erasures) log(r *http.Request, p *answer.EraseParams, out answer.EraseAnswer, err error) {
	line := e.audit.begin(r)
	if p.Key != "" {
		line = line.Str("key", p.Key)
	} else {
		line = line.Str("prefix", p.Prefix)
	}
	line.Int("erased", out.Erased).AnErr("broken_off", err).Msg("counters erased")
}

// auditLog logs changes that requests have made.
type auditLog struct {
	log     zerolog.Logger
	proxies *web.Networks // that are trusted
}

// begin begins a log line about a change. A token of QUERY_TOKENS is named by the beginning of its SHA-256.
func (l *auditLog) begin(r *http.Request) *zerolog.Event {
	from := r.RemoteAddr
	if client, err := l.proxies.Client(r); err == nil {
		from = client.String()
	}
	line := l.log.Info().Ctx(r.Context()).Bool("audit", true).Str("from", from)
	if name := access.From(r.Context()).Name(); name != "" {
		line = line.Str("token", name)
	}
	return line
}
