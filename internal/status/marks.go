package status

import (
	"context"
	"errors"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/answer"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
	"tallyroll/internal/window"
)

const defaultMarks, maxMarks = 100, 1000

// marksParams is what GET /v1/marks takes.
type marksParams struct {
	From  api.Moment `query:"from" doc:"The start: an RFC 3339 time or Unix milliseconds. Default: as far back as there are marks." example:"\"2026-11-21T09:00:00Z\""`
	To    api.Moment `query:"to" doc:"The end, not included. Default: none." example:"\"2026-11-21T10:00:00Z\""`
	Limit api.Number `query:"limit" doc:"The most marks to list, the newest: 1 to 1000. Default: 100." example:"100"`
}

func (p *marksParams) Read(g api.Given) error {
	return g.Singles(
		api.Text("from", api.MomentHint, (*string)(&p.From)),
		api.Text("to", api.MomentHint, (*string)(&p.To)),
		api.Text("limit", api.NumberHint(1, maxMarks), (*string)(&p.Limit)),
	)
}

// between reads the ends of the range.
func (p *marksParams) between() (from, to int64, err error) {
	to = math.MaxInt64
	if p.From != "" {
		from, err = p.From.Milli("from")
	}
	if p.To != "" && err == nil {
		to, err = p.To.Milli("to")
	}
	if err == nil && from >= to {
		err = web.BadInput("from", "%v", &window.EmptyError{Range: window.Range{From: from, To: to}})
	}
	return from, to, err
}

// MarksAnswer is what happened to the counts.
type MarksAnswer struct {
	Marks []Mark `json:"marks" doc:"In the order of their time."`
}

// Mark is something that happened to the counts.
type Mark struct {
	At     time.Time  `json:"at" doc:"When it happened or began." example:"2026-11-21T09:40:00Z"`
	Until  *time.Time `json:"until,omitempty" doc:"When it ended; absent if it has no length." example:"2026-11-21T09:52:00Z"`
	Kind   string     `json:"kind" doc:"rules: messages are read by another version of the rules or of the stream's subjects. loss: hits may be missing or counted twice. late: counting was more than a minute behind, and all is counted now. tiers: the namespace has other tiers. Later versions may have further kinds." example:"late"`
	Stream string     `json:"stream,omitempty" doc:"The stream; absent if it is about all." example:"HITS"`
	Detail string     `json:"detail" doc:"What happened, in one sentence." example:"counting was more than a minute behind, and has caught up"`
}

func (s *Status) registerMarks(a *api.API) {
	at := time.Date(2026, 11, 21, 9, 40, 0, 0, time.UTC)
	until := at.Add(12 * time.Minute)
	api.AnswerQuery(a, a.Operation(huma.Operation{
		OperationID: "get-marks", Method: http.MethodGet, Path: "/v1/marks",
		Summary: "What happened to the counts: rules, losses, outages",
		Description: "What explains a bend in a chart: " + strings.Join(window.MarkKinds, ", ") + ". A mark is listed if the range touches it. Workers keep the last 1000, as well as they can: " +
			"one may be missing. Whether an answer is complete, only the answer says. The list is at most a second old.",
		Responses: api.SuccessOnly("The marks of the range.", MarksAnswer{Marks: []Mark{
			{At: at, Until: &until, Kind: window.MarkLate, Stream: "HITS", Detail: "counting was more than a minute behind, and has caught up"},
		}}),
		Metadata: api.TryoutAt(func(now time.Time) []string {
			return []string{"/v1/marks", "/v1/marks?limit=20&from=" + now.Add(-24*time.Hour).UTC().Format(time.RFC3339)}
		}),
	}), api.OverHTTP(s.findMarks))
}

// findMarks checks parameters and answers them. Its errors are for the client.
func (s *Status) findMarks(ctx context.Context, part string, p *marksParams) (MarksAnswer, error) {
	limit, err := p.Limit.Parse("limit", defaultMarks, 1, maxMarks)
	if err != nil {
		return MarksAnswer{}, web.InputProblem(err, part)
	}
	from, to, err := p.between()
	if err != nil {
		return MarksAnswer{}, web.InputProblem(err, part)
	}
	all, err := s.marks.get(ctx, s.redis.Timeout, func(ctx context.Context) ([]window.Mark, error) { return answer.Ask(ctx, s.redis, s.Reader.Marks) })
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return MarksAnswer{}, web.ClientGone()
	case err != nil:
		return MarksAnswer{}, err
	}
	out := MarksAnswer{Marks: []Mark{}}
	for _, m := range slices.Backward(all) {
		if m.At >= to || max(m.At, m.Until) < from {
			continue
		}
		if int64(len(out.Marks)) == limit {
			break
		}
		mark := Mark{At: answer.Time(m.At), Kind: m.Kind, Stream: m.Stream, Detail: m.Detail}
		if m.Until > 0 {
			until := answer.Time(m.Until)
			mark.Until = &until
		}
		out.Marks = append(out.Marks, mark)
	}
	slices.Reverse(out.Marks)
	return out, nil
}
