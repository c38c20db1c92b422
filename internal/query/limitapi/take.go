package limitapi

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/limit"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
)

// TakePath is where hits are taken, and ReturnPath where they are given back. No number of a request decides
// by its sign whether it takes or gives.
const (
	TakePath   = "/v1/take"
	ReturnPath = "/v1/return"
)

// HitsBody is what the bodies of POST /v1/take and /v1/return share: hits of one key under one limit. (Its
// name is exported so that structs that embed it have its fields.)
type HitsBody struct {
	Subject
	Window string     `json:"window,omitempty" doc:"In place of limit, with QUERY_TAKE=any: the length of the rolling window, 1s to 366d." example:"1m"`
	Max    api.Number `json:"max,omitempty" doc:"With window: how many hits are allowed in it. With limit, if it has at_most: this take's own max." example:"100"`
	Starts startDay   `json:"starts,omitempty" doc:"With limit, if it has at_most and counts by week or month: the day that this key's periods start on." example:"17"`
	N      api.Number `json:"n,omitempty" doc:"How many hits. Default: 1." example:"1"`
	Policy policyName `json:"policy,omitempty" doc:"With window: how hits are kept. Default: cells." example:"cells"`
	ID     string     `json:"id,omitempty" doc:"Makes the request one that can be repeated: 1 to 128 bytes of UTF-8. The same id for the same limit and key counts once as long as it is remembered, and is allowed again; with another n, 422. A refused take leaves no trace. Or the field Idempotency-Key." example:"req-17"`
	TTL    string     `json:"ttl,omitempty" doc:"How long the id is remembered, and so takes can be repeated and settled: 1s to 1h, or to the ttl of the limit. Default: that of the limit, or 10m. Not with the policy stream." example:"10m"`

	idempotencyKey string // of the header
}

// ReadHeader takes the Idempotency-Key.
func (b *HitsBody) ReadHeader(h http.Header) { b.idempotencyKey = h.Get("Idempotency-Key") }

// takeBody is the body of POST /v1/take: one item, or several that are counted all or none.
type takeBody struct {
	HitsBody
	Lease string     `json:"lease,omitempty" doc:"With limit, if its policy is concurrent: a name for the lease, 1 to 64 letters, digits, _, -, . and :. The same name again is the same slot, so a retry does not take two. Default: a new one, which the answer has." example:"export-17"`
	Take  []takeItem `json:"take,omitempty" maxItems:"16" doc:"In place of limit or window: several takes, of which all or none are counted. n and id are for all that have none of their own."`
}

// returnBody is the body of POST /v1/return.
type returnBody struct {
	HitsBody
	Return []takeItem `json:"return,omitempty" maxItems:"16" doc:"In place of limit or window: several limits and keys. n and id are for all that have none of their own."`
}

// registerTake describes Idempotency-Key by hand, because a body's type describes no header.
func (s *Service) registerTake(a *api.API) {
	op := a.Operation(huma.Operation{
		OperationID: "post-take", Method: http.MethodPost, Path: TakePath,
		Summary: "Allow or refuse hits, and count them",
		Description: "Decides whether a key may have more hits in a rolling window, and if so counts them in the " +
			"same step. " +
			"Refused hits are not counted. The key is the caller's own, and no counter of the streams.",
		RequestBody: &huma.RequestBody{
			Description: "A named limit and a key; or numbers and a key, with QUERY_TAKE=any; or take: several " +
				"of them.",
			Content: map[string]*huma.MediaType{"application/json": {Example: takeBody{HitsBody: aliceLogin}}},
		},
		Responses: api.SuccessOnly("The hits are allowed and counted.", takeExample()),
	})
	op.Parameters = append(op.Parameters, idempotencyKey)
	describeTakes(a, &op)
	describeIDs(a, &op, "The id was used for something else.", limit.IDReused)
	api.AnswerBody(a, op, func(ctx context.Context, b *takeBody) (*TakeOutput, error) {
		return s.Take(ctx, web.InBody, b)
	})
}

func (s *Service) registerReturn(a *api.API) {
	op := a.Operation(huma.Operation{
		OperationID: "post-return", Method: http.MethodPost, Path: ReturnPath,
		Summary: "Give hits back",
		Description: "Removes the newest hits of a key under a limit, never below zero. The answer is that of a " +
			"take, and always allowed. Without an id, a repeated request gives back twice.",
		RequestBody: &huma.RequestBody{
			Description: "A named limit and a key; or numbers and a key, with QUERY_TAKE=any; or return: several " +
				"of them.",
			Content: map[string]*huma.MediaType{"application/json": {Example: returnBody{HitsBody: aliceLogin}}},
		},
		Responses: api.SuccessOnly("The hits are given back.", takeExample()),
	})
	op.Parameters = append(op.Parameters, idempotencyKey)
	describeForbidden(a, &op)
	describeIDs(a, &op, "The id was used for something else.", limit.IDReused)
	api.AnswerBody(a, op, func(ctx context.Context, b *returnBody) (*TakeOutput, error) {
		return s.Return(ctx, web.InBody, b)
	})
}

var (
	aliceLogin     = HitsBody{Subject: Subject{Limit: "login", Key: "alice"}}
	idempotencyKey = &huma.Param{
		Name: "Idempotency-Key", In: "header", Description: "In place of id.",
		Schema: &huma.Schema{Type: huma.TypeString, Examples: []any{"req-17"}},
	}
)

// Take checks a body, decides and counts. Its errors are for the client.
func (s *Service) Take(ctx context.Context, part string, b *takeBody) (*TakeOutput, error) {
	return s.change(ctx, part, &b.HitsBody, b.Lease, "take", b.Take, 1)
}

// Return checks a body and gives hits back. Its errors are for the client.
func (s *Service) Return(ctx context.Context, part string, b *returnBody) (*TakeOutput, error) {
	return s.change(ctx, part, &b.HitsBody, "", "return", b.Return, -1)
}

// change takes hits, or with the sign -1 gives them back. more is the body's list of that name.
func (s *Service) change(ctx context.Context, part string, b *HitsBody, lease, list string, more []takeItem,
	sign int64) (*TakeOutput, error) {
	err := s.limits.checkCounting()
	if err != nil {
		return nil, err
	}
	items, err := b.items(lease, list, more)
	if err != nil {
		return nil, web.InputProblem(err, part)
	}
	if len(more) == 0 {
		list = ""
	}
	ttl := time.Duration(0)
	if b.TTL != "" {
		if ttl, err = api.ParseDuration("ttl", b.TTL); err != nil {
			return nil, web.InputProblem(err, part)
		}
	}
	takes := make([]limit.Take, len(items))
	for i := range items {
		takes[i], err = s.limits.parseTake(ctx, &items[i], itemPrefix(list, i))
		if err != nil {
			return nil, web.InputProblem(err, part)
		}
		takes[i].N, takes[i].TTL = sign*takes[i].N, ttl
		if takes[i].Limit.Policy.Traits().Slots && takes[i].Lease == "" && takes[i].N > 0 {
			takes[i].Lease = limit.NewLease()
		}
	}
	answer, err := s.decide(ctx, takes, list)
	if err != nil {
		return nil, web.InputProblem(err, part)
	}
	return newTakeOutput(&answer, list != ""), nil
}

// items gives n and id to all items that have none of their own, so that one id can name the whole request.
func (b *HitsBody) items(lease, list string, more []takeItem) ([]takeItem, error) {
	switch {
	case b.ID == "":
		b.ID = b.idempotencyKey
	case b.idempotencyKey != "" && b.idempotencyKey != b.ID:
		return nil, web.BadInput("id", "differs from the field Idempotency-Key: one of them is enough")
	}
	single := takeItem{Subject: b.Subject, Window: b.Window, Max: b.Max, Starts: b.Starts, N: b.N, Policy: b.Policy,
		Lease: lease, ID: b.ID}
	if len(more) == 0 {
		return []takeItem{single}, nil
	}
	fields := append(single.numbers(), field{name: "limit", text: b.Limit}, field{name: "key", text: b.Key},
		field{name: "lease", text: lease})
	for _, f := range append(fields, single.values()...) {
		if f.isGiven() {
			return nil, web.BadInput(f.name, "not together with %s: write it into the items of %[1]s", list)
		}
	}
	if len(more) > MaxTakes {
		return nil, web.BadInput(list, "%d takes in one request: at most %d are allowed", len(more), MaxTakes)
	}
	out := append([]takeItem(nil), more...)
	for i := range out {
		out[i].N, out[i].ID = cmp.Or(out[i].N, b.N), cmp.Or(out[i].ID, b.ID)
	}
	return out, nil
}
