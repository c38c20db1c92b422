package limitapi

import (
	"cmp"
	"context"
	"crypto/rand"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/limit"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
)

// A reservation holds hits whose number is known later. Its holder settles it with the hits that there were.
const (
	ReservePath = "/v1/reserve"
	SettlePath  = "/v1/settle"
)

// defaultReservation is the length of a reservation without ttl.
const defaultReservation = time.Minute

// ReserveItem names hits of a key under a named limit.
type ReserveItem struct {
	Subject
	N api.Number `json:"n,omitempty" doc:"How many hits. To settle with 0 cancels. Default to reserve: 1." example:"4000"`
}

// reserveBody is the body of POST /v1/reserve.
type reserveBody struct {
	ReserveItem
	ID      string        `json:"id,omitempty" doc:"The reservation's id, 1 to 128 bytes of UTF-8. The same again, while it is remembered, reserves nothing more; with another n, 422. Default: a new one, which the answer has." example:"req-17"`
	TTL     string        `json:"ttl,omitempty" doc:"How long the hits are reserved: 1s to 1h. Default: 60s." example:"60s"`
	Renew   bool          `json:"renew,omitempty" doc:"Extends the reservation id to ttl from now, in place of a new one. n is not needed." example:"false"`
	Reserve []ReserveItem `json:"reserve,omitempty" maxItems:"16" doc:"In place of limit: several limits and keys, of which all or none are reserved. n is for all that have none of their own."`
}

// settleBody is the body of POST /v1/settle.
type settleBody struct {
	ReserveItem
	ID     string        `json:"reservation,omitempty" doc:"The id of the reservation." example:"req-17"`
	Settle []ReserveItem `json:"settle,omitempty" maxItems:"16" doc:"In place of limit: the limits and keys as reserved, of which all or none are settled. n is for all that have none of their own."`
}

// SettleAnswer answers a settlement; for several limits, the numbers are of the one with the least remaining.
type SettleAnswer struct {
	Settled     int64          `json:"settled" doc:"How many hits were counted for the reservation." example:"731"`
	Over        int64          `json:"over" doc:"How many hits there are beyond the limit's max now, because settlements were larger than their reservations." example:"0"`
	Remaining   int64          `json:"remaining" doc:"How many more hits would be allowed now." example:"99269"`
	Repeated    bool           `json:"repeated,omitempty" doc:"True if the reservation had been settled so before: then nothing was counted now." example:"true"`
	Limit       string         `json:"limit" doc:"The name of the limit." example:"tokens"`
	Source      string         `json:"source" doc:"redis; or local: Redis could not be asked, and this process had reserved the hits without it." example:"redis"`
	Settlements []SettleAnswer `json:"settlements,omitempty" doc:"If the request has settle: one per limit and key, in order."`
}

func (s *Service) registerReservations(a *api.API) {
	body := func(about string, example any) *huma.RequestBody {
		return &huma.RequestBody{Description: about, Content: map[string]*huma.MediaType{"application/json": {Example: example}}}
	}
	at := time.Date(2026, 11, 21, 10, 1, 0, 31e7, time.UTC)
	reserved := takeExample()
	reserved.Limit, reserved.Remaining, reserved.ID, reserved.Expires = "tokens", 96000, "req-17", at
	reserve := a.Operation(huma.Operation{
		OperationID: "post-reserve", Method: http.MethodPost, Path: ReservePath,
		Summary: "Reserve hits whose number is not known yet",
		Description: "Decides like POST /v1/take, and reserves the hits until they are settled or ttl is over. What is reserved counts in every decision about the key. " +
			"If it is not settled, on_expiry of the limit says what it becomes: count (the default) counts the hits at its end, release counts none.",
		RequestBody: body("A named limit, a key and the most hits that there can be; or reserve: several of them.",
			reserveBody{ReserveItem: ReserveItem{Subject: Subject{Limit: "tokens", Key: "alice"}, N: "4000"}, TTL: "60s", ID: "req-17"}),
		Responses: api.SuccessOnly("The hits are reserved.", reserved),
	})
	describeTakes(a, &reserve)
	describeReused(a, &reserve)
	describeReservations(a, &reserve)
	api.AnswerBody(a, reserve, func(ctx context.Context, b *reserveBody) (*TakeOutput, error) { return s.Reserve(ctx, web.InBody, b) })
	settle := a.Operation(huma.Operation{
		OperationID: "post-settle", Method: http.MethodPost, Path: SettlePath,
		Summary: "Settle a reservation",
		Description: "Counts the hits that there were, now, and frees the rest of the reservation. There may be more than reserved: they have happened, so they count. " +
			"Settling again with the same n changes nothing, so a client can repeat the request until it has an answer.",
		RequestBody: body("The limit and key as reserved, the reservation, and n.",
			settleBody{ReserveItem: ReserveItem{Subject: Subject{Limit: "tokens", Key: "alice"}, N: "731"}, ID: "req-17"}),
		Responses: api.SuccessOnly("The hits are counted.", SettleAnswer{Settled: 731, Remaining: 99269, Limit: "tokens", Source: "redis"}),
	})
	describeForbidden(a, &settle)
	describeReservations(a, &settle)
	api.AnswerBody(a, settle, api.OverHTTPBody(s.Settle))
}

// Reserve checks a body and reserves hits, or renews a reservation. Its errors are for the client.
func (s *Service) Reserve(ctx context.Context, part string, b *reserveBody) (*TakeOutput, error) {
	list := ""
	if len(b.Reserve) > 0 {
		list = "reserve"
	}
	if b.ID == "" && b.Renew {
		return nil, web.BadInput("id", "it is missing: renew names the reservation").Problem(part)
	}
	if b.ID == "" {
		b.ID = rand.Text()
	}
	takes, err := s.reservationTakes(part, list, &b.ReserveItem, b.Reserve, b.ID)
	if err != nil {
		return nil, err
	}
	length := defaultReservation
	if b.TTL != "" {
		if length, err = api.ParseDuration("ttl", b.TTL); err != nil {
			return nil, web.InputProblem(err, part)
		}
	}
	for i := range takes {
		takes[i].Reserve = length
	}
	if b.Renew {
		return s.renewReservations(ctx, part, takes, list)
	}
	answer, err := s.decide(ctx, takes, list)
	if err != nil {
		return nil, web.InputProblem(err, part)
	}
	out := newTakeOutput(&answer, list != "")
	for i := range answer.Decisions {
		if ends := answer.Decisions[i].Ends; answer.Allowed && !ends.IsZero() && (out.Body.ID == "" || ends.Before(out.Body.Expires)) {
			out.Body.ID, out.Body.Expires = b.ID, ends
		}
	}
	if answer.Allowed {
		out.Body.ID = b.ID
	}
	return out, nil
}

func (s *Service) renewReservations(ctx context.Context, part string, takes []limit.Take, list string) (*TakeOutput, error) {
	renewed, err := s.limiter.RenewReservations(ctx, takes)
	if err != nil {
		return nil, web.InputProblem(s.limitError(ctx, err, takes, list), part)
	}
	least := leastRemaining(renewed)
	return &TakeOutput{Status: http.StatusOK, Body: TakeAnswer{
		Allowed: true, Certain: true, Remaining: least.Remaining, Limit: least.Take.Limit.Name, Source: string(least.Source),
		ID: least.Take.ID, Expires: least.Ends,
	}}, nil
}

// Settle checks a body and settles a reservation. Its errors are for the client.
func (s *Service) Settle(ctx context.Context, part string, b *settleBody) (SettleAnswer, error) {
	list := ""
	if len(b.Settle) > 0 {
		list = "settle"
	}
	if b.ID == "" {
		return SettleAnswer{}, web.BadInput("reservation", "it is missing: allowed is the id of a reservation").Problem(part)
	}
	for i, item := range append([]ReserveItem{b.ReserveItem}, b.Settle...) {
		if item.N == "" && b.N == "" && (list == "") == (i == 0) {
			return SettleAnswer{}, web.BadInput(itemPrefix(list, i-1)+"n", "it is missing: allowed is how many hits there were, or 0 to cancel").Problem(part)
		}
	}
	takes, err := s.reservationTakes(part, list, &b.ReserveItem, b.Settle, b.ID)
	if err != nil {
		return SettleAnswer{}, err
	}
	settled, err := s.limiter.Settle(ctx, takes)
	s.countSettlements(takes, settled)
	if err != nil {
		return SettleAnswer{}, web.InputProblem(s.limitError(ctx, err, takes, list), part)
	}
	out := newSettleAnswer(leastRemaining(settled))
	for i := range b.Settle {
		out.Settlements = append(out.Settlements, newSettleAnswer(&settled[i]))
	}
	return out, nil
}

// countSettlements counts what became of the takes; settled is nil if none was.
func (s *Service) countSettlements(takes []limit.Take, settled []limit.Settlement) {
	for i := range takes {
		result := "refused"
		switch {
		case settled != nil && settled[i].Repeated:
			result = "repeated"
		case settled != nil:
			result = "settled"
		}
		s.settled.WithLabelValues(takes[i].Limit.Name, result).Inc()
	}
}

func newSettleAnswer(s *limit.Settlement) SettleAnswer {
	return SettleAnswer{
		Settled: s.Settled, Over: s.Over, Remaining: s.Remaining, Repeated: s.Repeated, Limit: s.Take.Limit.Name, Source: string(s.Source),
	}
}

func leastRemaining(all []limit.Settlement) *limit.Settlement {
	out := &all[0]
	for i := range all {
		if all[i].Remaining-all[i].Over < out.Remaining-out.Over {
			out = &all[i]
		}
	}
	return out
}

// reservationTakes checks the limits and keys of a body: one, or those of a list, for which list is its name.
func (s *Service) reservationTakes(part, list string, single *ReserveItem, several []ReserveItem, id string) ([]limit.Take, error) {
	if err := s.limits.checkCounting(); err != nil {
		return nil, err
	}
	items := several
	switch {
	case list == "":
		items = []ReserveItem{*single}
	case single.Limit != "" || single.Key != "":
		return nil, web.BadInput("limit", "not together with %s: write limits and keys into its items", list).Problem(part)
	case len(several) > MaxTakes:
		return nil, web.BadInput(list, "%d limits in one request: at most %d are allowed", len(several), MaxTakes).Problem(part)
	}
	takes := make([]limit.Take, len(items))
	for i := range items {
		item, prefix := &items[i], itemPrefix(list, i)
		if item.Limit == "" {
			return nil, web.BadInput(prefix+"limit", "it is missing: name a limit of QUERY_LIMITS_FILE").Problem(part)
		}
		take, err := s.limits.parseTake(&takeItem{Subject: item.Subject, N: cmp.Or(item.N, single.N), ID: id}, prefix)
		if err == nil && take.N < 0 {
			err = web.BadInput(prefix+"n", "%d: allowed is 0 to %d", take.N, limit.MaxHits)
		}
		if err != nil {
			return nil, web.InputProblem(err, part)
		}
		takes[i] = take
	}
	return takes, nil
}

func reservationProblem(e *limit.ReservationError) *web.Problem {
	switch {
	case !e.Ended.IsZero():
		return web.NewProblem(http.StatusGone, e.Error()).OfKind(web.ReservationEnded)
	case e.Settled >= 0:
		return web.NewProblem(http.StatusConflict, e.Error()).OfKind(web.ReservationSettled)
	}
	return web.NewProblem(http.StatusNotFound, e.Error()).OfKind(web.ReservationUnknown)
}

func describeReservations(a *api.API, op *huma.Operation) {
	t := limit.Take{Limit: &limit.Limit{OnExpiry: limit.ExpiryCounts}, ID: "req-17"}
	for _, e := range []*limit.ReservationError{{Take: t, Settled: -1}, {Take: t, Settled: 700}, {Take: t, Settled: -1, Ended: time.Date(2026, 11, 21, 10, 1, 0, 0, time.UTC)}} {
		p := reservationProblem(e)
		op.Responses[strconv.Itoa(p.Status)] = a.ProblemResponse("The reservation is unknown, was settled with another number, or has ended.", p, nil)
	}
}

func describeReused(a *api.API, op *huma.Operation) {
	used := (&limit.IDError{Take: limit.Take{ID: "req-17"}}).Error()
	op.Responses[strconv.Itoa(http.StatusUnprocessableEntity)] = a.ProblemResponse("The id was used for something else.",
		web.NewProblem(http.StatusUnprocessableEntity, used).OfKind(web.IdempotencyKeyReused), nil)
}
