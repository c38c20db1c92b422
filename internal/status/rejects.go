package status

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/answer"
	"tallyroll/internal/hit"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
)

const defaultRejects, maxRejects = 20, 100

// rejectsParams is what GET /v1/rejects takes.
type rejectsParams struct {
	Limit  api.Number `query:"limit" doc:"The most rejects to list: 1 to 100. Default: 20." example:"20"`
	Reason string     `query:"reason" doc:"Only rejects with this reason." example:"too_late"`
	Stream string     `query:"stream" doc:"Only rejects from this stream." example:"HITS"`
}

func (p *rejectsParams) Read(g api.Given) error {
	return g.Singles(
		api.Single{"limit", api.NumberHint(1, maxRejects), (*string)(&p.Limit)},
		api.Single{"reason", reasonHint, &p.Reason},
		api.Single{"stream", "the name of a stream", &p.Stream},
	)
}

// reasonHint lists the reasons.
var reasonHint = func() string {
	names := make([]string, len(hit.Reasons))
	for i, r := range hit.Reasons {
		names[i] = string(r)
	}
	return strings.Join(names, ", ")
}()

// RejectsAnswer is the answer.
type RejectsAnswer struct {
	Stored   uint64        `json:"stored" doc:"How many messages of this namespace HITS_REJECTED holds." example:"17"`
	Searched int           `json:"searched" doc:"How many of the newest were looked at, at most 1000." example:"17"`
	Reasons  []reasonCount `json:"reasons" doc:"How many of those there are for each reason, most first."`
	Rejects  []Rejected    `json:"rejects" doc:"The newest of those that were asked for, newest first."`
}

type reasonCount struct {
	Reason string    `json:"reason" doc:"Why a hit was refused." example:"too_late"`
	Count  int       `json:"count" doc:"How many of the messages that were looked at." example:"12"`
	Newest time.Time `json:"newest" doc:"When the newest of them was stored." example:"2026-11-21T10:00:00.2Z"`
}

// Rejected is a hit that could not be counted.
type Rejected struct {
	Reason   string    `json:"reason" doc:"Why, in one word." example:"bad_json"`
	Detail   string    `json:"detail" doc:"Why, in one sentence." example:"not a JSON object"`
	Stream   string    `json:"stream" doc:"The stream of the message." example:"HITS"`
	Sequence uint64    `json:"sequence" doc:"The message's sequence there." example:"48001"`
	Item     int       `json:"item" doc:"The hit's index in the message." example:"0"`
	Time     time.Time `json:"time" doc:"When the message was stored." example:"2026-11-21T10:00:00.2Z"`
	Body     string    `json:"body" doc:"The hit, or its first 512 bytes; what is not UTF-8 is replaced." example:"{\"kay\":\"a\"}"`
	Bytes    int       `json:"bytes" doc:"How many bytes the hit has." example:"11"`
	Position uint64    `json:"position" doc:"Its sequence in HITS_REJECTED." example:"17"`
}

func (s *Status) registerRejects(a *api.API) {
	at := time.Date(2026, 11, 21, 10, 0, 0, 2e8, time.UTC)
	api.AnswerQuery(a, a.Operation(huma.Operation{
		OperationID: "get-rejects", Method: http.MethodGet, Path: "/v1/rejects",
		Summary: "Hits that could not be counted, and why",
		Description: "The newest messages of the stream HITS_REJECTED that workers of this namespace have refused. Needs NATS: 501 if NATS_URL is set to nothing, 503 while NATS does not answer. " +
			"The list is at most a second old.",
		Responses: needsNATS(a, api.SuccessOnly("The newest rejects.", RejectsAnswer{
			Stored: 1, Searched: 1, Reasons: []reasonCount{{"bad_json", 1, at}},
			Rejects: []Rejected{{"bad_json", "not a JSON object", "HITS", 48001, 0, at, "kay=a", 5, 17}},
		})),
		Metadata: api.Tryout("/v1/rejects?limit=20", "/v1/rejects?reason=too_late"),
	}), api.OverHTTP(s.findRejects))
}

// findRejects checks parameters and answers them. Its errors are for the client.
func (s *Status) findRejects(ctx context.Context, part string, p *rejectsParams) (RejectsAnswer, error) {
	limit, err := p.Limit.Parse("limit", defaultRejects, 1, maxRejects)
	if err != nil {
		return RejectsAnswer{}, web.InputProblem(err, part)
	}
	if p.Reason != "" && !slices.Contains(hit.Reasons, hit.Reason(p.Reason)) {
		return RejectsAnswer{}, web.BadInput("reason", "%s: allowed are %s", web.Excerpt(p.Reason), reasonHint).In(part)
	}
	js, err := s.jetStream()
	if err != nil {
		return RejectsAnswer{}, err
	}
	newest, err := s.rejects.get(ctx, func(ctx context.Context) (newestRejects, error) { return readNewest(ctx, js, s.Namespace) })
	if err != nil {
		return RejectsAnswer{}, s.natsUnavailable(ctx, err)
	}
	out := RejectsAnswer{Stored: newest.stored, Searched: len(newest.found), Reasons: countReasons(newest.found)}
	bounded, cancel := context.WithTimeout(ctx, answer.Timeout)
	defer cancel()
	out.Rejects, err = withBodies(bounded, js, newest.pick(int(limit), p.Reason, p.Stream))
	if err != nil {
		return RejectsAnswer{}, s.natsUnavailable(ctx, err)
	}
	return out, nil
}
