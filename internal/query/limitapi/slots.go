package limitapi

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/limit"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
)

// A take under concurrent acquires a slot. Its holder renews the lease while it works, and then releases it.
const (
	RenewPath   = "/v1/renew"
	ReleasePath = "/v1/release"
)

// placeBody (its name is that of a schema in OpenAPI) is the body of POST /v1/renew and /v1/release.
type placeBody struct {
	Subject
	Lease string `json:"lease,omitempty" doc:"The lease, as the answer to the take has it." example:"export-17"`
}

// RenewAnswer answers a renewal.
type RenewAnswer struct {
	Held   bool      `json:"held" doc:"Whether the slot is held. False only if the limit is in shadow mode: otherwise a lease that has ended is a problem with the status 409." example:"true"`
	Lease  string    `json:"lease" doc:"The lease." example:"export-17"`
	Ends   time.Time `json:"ends,omitzero" doc:"When it ends unless it is renewed, by the clock of Redis." example:"2026-11-21T10:00:30.31Z"`
	EndsIn float64   `json:"ends_in,omitempty" doc:"Seconds until then." example:"30"`
	Limit  string    `json:"limit" doc:"The name of the limit." example:"exports"`
	Source string    `json:"source" doc:"redis; or local: Redis could not be asked, and the limit's fail mode decided." example:"redis"`
	Shadow bool      `json:"shadow,omitempty" doc:"Whether the limit is in shadow mode." example:"false"`
}

// ReleaseAnswer answers a release.
type ReleaseAnswer struct {
	Released bool   `json:"released" doc:"Whether the slot was held until now. False if the lease has ended, was released before, or was never given out: that is no error." example:"true"`
	Lease    string `json:"lease" doc:"The lease." example:"export-17"`
	Limit    string `json:"limit" doc:"The name of the limit." example:"exports"`
}

// registerSlots registers renewals and releases together, because they have the same body.
func (s *Service) registerSlots(a *api.API) {
	example := placeBody{Subject: Subject{Limit: "exports", Key: "customer-7"}, Lease: "export-17"}
	body := func(about string) *huma.RequestBody {
		return &huma.RequestBody{
			Description: about, Content: map[string]*huma.MediaType{"application/json": {Example: example}},
		}
	}
	at := time.Date(2026, 11, 21, 10, 0, 30, 31e7, time.UTC)
	renew := a.Operation(huma.Operation{
		OperationID: "post-renew", Method: http.MethodPost, Path: RenewPath,
		Summary: "Renew a lease",
		Description: "Extends a lease of a limit with the policy concurrent to a whole window from now. It acquires " +
			"nothing: a lease that has ended stays ended, " +
			"because another may hold the slot. Renew about three times per window, so that one request can be lost.",
		RequestBody: body("The limit, the key and the lease of the take."),
		Responses: api.SuccessOnly("The lease is renewed.", RenewAnswer{Held: true, Lease: "export-17", Ends: at,
			EndsIn: 30, Limit: "exports", Source: "redis"}),
	})
	describeForbidden(a, &renew)
	renew.Responses[strconv.Itoa(http.StatusConflict)] = a.ProblemResponse("The lease has ended or was released.",
		leaseEnded("export-17"), nil)
	api.AnswerBody(a, renew, api.OverHTTPBody(s.Renew))
	release := a.Operation(huma.Operation{
		OperationID: "post-release", Method: http.MethodPost, Path: ReleasePath,
		Summary: "Release a lease",
		Description: "Ends a lease of a limit with the policy concurrent at once, and frees its slot. Releasing it " +
			"again, or one that has ended, is no error.",
		RequestBody: body("The limit, the key and the lease of the take."),
		Responses: api.SuccessOnly("The slot is free.", ReleaseAnswer{Released: true, Lease: "export-17",
			Limit: "exports"}),
	})
	describeForbidden(a, &release)
	api.AnswerBody(a, release, api.OverHTTPBody(s.Release))
}

// leaseEnded is the problem of a holder that has lost its slot.
func leaseEnded(lease string) *web.Problem {
	return web.NewProblem(http.StatusConflict, fmt.Sprintf("the lease %s has ended or was released: another may hold "+
		"its slot: take a new one", web.Excerpt(lease))).OfKind(web.LeaseEnded)
}

// Renew checks a body and renews a lease. Its errors are for the client.
func (s *Service) Renew(ctx context.Context, part string, b *placeBody) (RenewAnswer, error) {
	take, err := s.limits.leaseTake(ctx, part, b)
	if err != nil {
		return RenewAnswer{}, err
	}
	lease, err := s.limiter.Renew(ctx, take)
	if err != nil {
		return RenewAnswer{}, web.InputProblem(s.limitError(ctx, err, []limit.Take{take}, ""), part)
	}
	shadow := take.Limit.Mode == limit.Shadow
	if !lease.Held && !shadow {
		return RenewAnswer{}, leaseEnded(b.Lease)
	}
	return RenewAnswer{
		Held: lease.Held, Lease: b.Lease, Ends: lease.Ends, EndsIn: floorSeconds(lease.EndsIn), Limit: b.Limit,
		Source: string(lease.Source), Shadow: shadow,
	}, nil
}

// Release checks a body and releases a lease. Its errors are for the client.
func (s *Service) Release(ctx context.Context, part string, b *placeBody) (ReleaseAnswer, error) {
	take, err := s.limits.leaseTake(ctx, part, b)
	if err != nil {
		return ReleaseAnswer{}, err
	}
	released, err := s.limiter.Release(ctx, take)
	if err != nil {
		return ReleaseAnswer{}, web.InputProblem(s.limitError(ctx, err, []limit.Take{take}, ""), part)
	}
	return ReleaseAnswer{Released: released, Lease: b.Lease, Limit: b.Limit}, nil
}

func (l *limits) leaseTake(ctx context.Context, part string, b *placeBody) (take limit.Take, err error) {
	err = l.checkCounting()
	if err != nil {
		return take, err
	}
	if b.Limit == "" {
		return take, web.BadInput("limit", "missing: name a limit with the policy concurrent").Problem(part)
	}
	take, err = l.parseTake(ctx, &takeItem{Subject: b.Subject, Lease: b.Lease}, "")
	if err != nil {
		return take, web.InputProblem(err, part)
	}
	return take, nil
}
