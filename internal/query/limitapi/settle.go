package limitapi

import (
	"cmp"
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/limit"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
)

// SettlePath is where the number of hits is sent that a take turned out to have.
const SettlePath = "/v1/settle"

// SettleItem names a take under a limit, by its key, and its hits.
type SettleItem struct {
	Subject
	N      api.Number `json:"n,omitempty" doc:"How many hits the take has; 0 cancels it." example:"731"`
	Max    api.Number `json:"max,omitempty" doc:"The take's own max, if it had one." example:"250000"`
	Starts startDay   `json:"starts,omitempty" doc:"The take's own day, if it had one." example:"17"`
}

// settleBody is the body of POST /v1/settle.
type settleBody struct {
	SettleItem
	ID     string       `json:"id,omitempty" doc:"The id of the take." example:"req-17"`
	Settle []SettleItem `json:"settle,omitempty" maxItems:"16" doc:"In place of limit: the limits and keys as taken, of which all or none are settled. n is for all that have none of their own."`
}

// SettleAnswer answers a settlement; for several limits, the numbers are of the one with the least remaining.
// Limits in shadow mode are not among them, unless all are.
type SettleAnswer struct {
	Settled     int64          `json:"settled" doc:"How many hits the take has now." example:"731"`
	Over        int64          `json:"over" doc:"How many hits there are beyond the limit's max now, because settlements were larger than their takes." example:"0"`
	Remaining   int64          `json:"remaining" doc:"How many more hits would be allowed now." example:"99269"`
	Repeated    bool           `json:"repeated,omitempty" doc:"True if the take had been settled with the same number before: then nothing changed now." example:"true"`
	Counted     *bool          `json:"counted,omitempty" doc:"False if nothing changed, because a limit in shadow mode had not counted the take, or Redis did not answer and the limit is open or in shadow mode." example:"false"`
	Limit       string         `json:"limit" doc:"The name of the limit." example:"tokens"`
	Source      string         `json:"source" doc:"redis; or local: Redis could not be asked." example:"redis"`
	Settlements []SettleAnswer `json:"settlements,omitempty" doc:"If the request has settle: one per limit and key, in order."`
}

// registerSettle describes the problems of ids, too: a client must tell hits that stay counted from those
// that cannot be settled.
func (s *Service) registerSettle(a *api.API) {
	example := settleBody{ID: "req-17",
		SettleItem: SettleItem{Subject: Subject{Limit: "tokens", Key: "alice"}, N: "731"}}
	op := a.Operation(huma.Operation{
		OperationID: "post-settle", Method: http.MethodPost, Path: SettlePath,
		Summary: "Set how many hits a take has",
		Description: "The take with the id has n hits from now on. Fewer than before are given back at the time of " +
			"the take. More count now, whatever max is: they have happened. " +
			"It sets a number, so a client can repeat the request until it has an answer, and correct it. The id is " +
			"remembered for its ttl from now.",
		RequestBody: &huma.RequestBody{
			Description: "A limit and key as taken, the id of the take, and n; or settle: several limits and keys.",
			Content:     map[string]*huma.MediaType{"application/json": {Example: example}},
		},
		Responses: api.SuccessOnly("The take has n hits.", SettleAnswer{Settled: 731, Remaining: 99269, Limit: "tokens",
			Source: "redis"}),
	})
	describeForbidden(a, &op)
	describeIDs(a, &op, "The id is not remembered, or its take cannot be settled.", limit.IDUnknown, limit.IDNotSettled)
	api.AnswerBody(a, op, api.OverHTTPBody(s.Settle))
}

// Settle checks a body and settles a take. Its errors are for the client.
func (s *Service) Settle(ctx context.Context, part string, b *settleBody) (SettleAnswer, error) {
	takes, list, err := s.limits.settleTakes(ctx, b)
	if err != nil {
		return SettleAnswer{}, web.InputProblem(err, part)
	}
	a, err := s.limiter.Settle(ctx, takes)
	if err != nil {
		err, result := s.limitError(ctx, err, takes, list), "refused"
		if web.IsClientGone(err) {
			result = "canceled"
		}
		for i := range takes {
			s.outcomes.settled.WithLabelValues(takes[i].Limit.Name, result).Inc()
		}
		return SettleAnswer{}, web.InputProblem(err, part)
	}
	all, least := make([]SettleAnswer, len(takes)), 0
	for i := range a.Decisions {
		d, first := &a.Decisions[i], &a.Decisions[least]
		all[i] = s.outcomes.newSettleAnswer(d)
		if first.Shadow && !d.Shadow || first.Shadow == d.Shadow && d.Remaining-d.Over < first.Remaining-first.Over {
			least = i
		}
	}
	out := all[least]
	if list != "" {
		out.Settlements = all
	}
	return out, nil
}

func (o *outcomes) newSettleAnswer(d *limit.Decision) SettleAnswer {
	out, result := SettleAnswer{Over: d.Over, Remaining: d.Remaining, Repeated: d.Repeated, Limit: d.Take.Limit.Name,
		Source: string(d.Source)}, "settled"
	switch {
	case d.Settled == nil:
		result, out.Counted = "uncounted", new(bool)
	case d.Repeated:
		result = "repeated"
	}
	if d.Settled != nil {
		out.Settled = *d.Settled
	}
	o.settled.WithLabelValues(out.Limit, result).Inc()
	return out
}

// settleTakes checks the limits and keys of a body: one, or those of a list, for which list is its name.
func (l *limits) settleTakes(ctx context.Context, b *settleBody) (takes []limit.Take, list string, err error) {
	items := b.Settle
	switch err := l.checkCounting(); {
	case err != nil:
		return nil, "", err
	case b.ID == "":
		return nil, "", web.BadInput("id", "missing: must be the id of a take")
	case len(items) == 0:
		items = []SettleItem{b.SettleItem}
	case b.Limit != "" || b.Key != "" || b.Max != "" || b.Starts != "":
		return nil, "", web.BadInput("limit", "not together with settle: write limits and keys into its items")
	case len(items) > MaxTakes:
		return nil, "", web.BadInput("settle", "%d limits in one request: must be at most %d", len(items), MaxTakes)
	default:
		list = "settle"
	}
	for i := range items {
		item, prefix := &items[i], itemPrefix(list, i)
		n := cmp.Or(item.N, b.N)
		switch {
		case item.Limit == "":
			return nil, list, web.BadInput(prefix+"limit", "missing: must be the name of a limit")
		case n == "":
			return nil, list, web.BadInput(prefix+"n", "missing: must be how many hits there were, or 0 to cancel")
		}
		take, err := l.parseTake(ctx, &takeItem{Subject: item.Subject, N: n, ID: b.ID, Max: item.Max,
			Starts: item.Starts}, prefix)
		if err != nil {
			return nil, list, err
		}
		takes = append(takes, take)
	}
	return takes, list, nil
}
