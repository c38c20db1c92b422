package limitapi

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/limit"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
)

// TakeAnswer is a decision; for several takes, the decisive one.
type TakeAnswer struct {
	Allowed    bool         `json:"allowed" doc:"Whether the hits are within the limit. Of several takes, whether all are: only then are they counted." example:"true"`
	Certain    bool         `json:"certain" doc:"False if it is unknown whether hits that decide are still in the window, or if Redis could not be asked; for a counter of the streams, also if no worker has counted lately." example:"true"`
	Remaining  int64        `json:"remaining" doc:"How many more hits would be allowed now; 1000000000000 under an unlimited limit." example:"99"`
	RetryAfter float64      `json:"retry_after" doc:"Seconds until it will be allowed if no other hits come; 0 if it is allowed. Under a limit that always refuses, its window." example:"0"`
	ResetsIn   float64      `json:"resets_in,omitempty" doc:"Seconds until all hits stop counting, because the period of the policy fixed ends." example:"86400"`
	Limit      string       `json:"limit,omitempty" doc:"The name of the limit that decided; absent if the request gave numbers." example:"login"`
	Source     string       `json:"source" doc:"redis; share: this process had taken hits from Redis in advance; memory: Redis had refused the same, and until when, or the limit always refuses or is unlimited; local: Redis could not be asked, and the limit's fail mode decided; or fail=open did, for a counter of the streams." example:"redis"`
	Shadow     bool         `json:"shadow,omitempty" doc:"True if the request has a limit in shadow mode, which refuses nothing." example:"true"`
	WouldAllow *bool        `json:"would_allow,omitempty" doc:"With shadow: whether the hits would be allowed if no limit were in shadow mode." example:"false"`
	Lease      string       `json:"lease,omitempty" doc:"Under a limit with the policy concurrent: the slot that is held. Renew it before it ends, and release it." example:"export-17"`
	Ends       time.Time    `json:"ends,omitzero" doc:"With lease: when it ends unless it is renewed, by the clock of Redis." example:"2026-11-21T10:00:30.31Z"`
	EndsIn     float64      `json:"ends_in,omitempty" doc:"With lease: seconds until then." example:"30"`
	Takes      []takeResult `json:"takes,omitempty" doc:"If the request has take: a decision per take, in order. If memory refuses, only the takes that it refuses."`
	Repeated   bool         `json:"repeated,omitempty" doc:"True if the same take, by its id, was counted before: then nothing is counted now. Of several takes, if all were." example:"true"`
	Settled    *int64       `json:"settled,omitempty" doc:"With repeated: the number that the take was settled with, if it was." example:"731"`
	AsOf       time.Time    `json:"as_of,omitzero" doc:"Only for a counter of the streams: every hit stored before this moment is in the decision." example:"2026-11-21T10:00:00.2Z"`
	Complete   *bool        `json:"complete,omitempty" doc:"Only for a counter of the streams: false if hits of the window are known to be missing, or may be, as in /v1/total." example:"true"`
}

type takeResult struct {
	Limit      string    `json:"limit,omitempty" doc:"The name of the limit." example:"per-second"`
	Key        string    `json:"key" doc:"The key, as it is kept." example:"alice"`
	Allowed    bool      `json:"allowed" doc:"Whether this take alone is within its limit." example:"true"`
	Certain    bool      `json:"certain" doc:"As above." example:"true"`
	Remaining  int64     `json:"remaining" doc:"As above." example:"9"`
	RetryAfter float64   `json:"retry_after" doc:"As above." example:"0"`
	ResetsIn   float64   `json:"resets_in,omitempty" doc:"As above." example:"86400"`
	Source     string    `json:"source" doc:"As above." example:"redis"`
	Shadow     bool      `json:"shadow,omitempty" doc:"Whether this limit is in shadow mode." example:"true"`
	WouldAllow *bool     `json:"would_allow,omitempty" doc:"With shadow: whether it would be allowed if the limit were not. If not, it is not counted under this limit." example:"false"`
	Settled    *int64    `json:"settled,omitempty" doc:"As above." example:"731"`
	Lease      string    `json:"lease,omitempty" doc:"As above." example:"export-17"`
	Ends       time.Time `json:"ends,omitzero" doc:"As above." example:"2026-11-21T10:00:30.31Z"`
	EndsIn     float64   `json:"ends_in,omitempty" doc:"As above." example:"30"`
}

// Refusal is the body of a 429: a decision, and a problem for clients that read only problems.
type Refusal struct {
	Type     string   `json:"type" doc:"The problem type of a quota that is exceeded." example:"https://iana.org/assignments/http-problem-types#quota-exceeded"`
	Title    string   `json:"title" doc:"What kind of problem it is." example:"Quota exceeded"`
	Status   int      `json:"status" doc:"The HTTP status." example:"429"`
	Detail   string   `json:"detail" doc:"One sentence: which limits refuse, and when to ask again." example:"over the limit login: ask again in 11.417 seconds"`
	Policies []string `json:"violated-policies" doc:"The names of the limits that refuse, as RateLimit-Policy has them." example:"[\"login\"]"`
	TakeAnswer
}

func newRefusal(a TakeAnswer, violated []string) *Refusal {
	return &Refusal{
		Type: web.QuotaExceeded, Title: "Quota exceeded", Status: http.StatusTooManyRequests, Policies: violated,
		TakeAnswer: a,
		Detail: fmt.Sprintf("over the limit %s: ask again in %s seconds", strings.Join(violated, ", "),
			strconv.FormatFloat(a.RetryAfter, 'f', -1, 64)),
	}
}

func refusedExample() *Refusal {
	return newRefusal(TakeAnswer{Certain: true, RetryAfter: 11.417, Limit: "login", Source: "redis"}, []string{"login"})
}

// TakeOutput is a decision with its header fields.
type TakeOutput struct {
	Status          int
	RateLimitPolicy string `header:"RateLimit-Policy" doc:"The limits, as draft-ietf-httpapi-ratelimit-headers-11 writes them: q hits in w seconds." example:"\"login\";q=5;w=60"`
	RateLimit       string `header:"RateLimit" doc:"What is left of them: r hits, for t seconds." example:"\"login\";r=4;t=60"`
	RetryAfter      string `header:"Retry-After" doc:"With 429: whole seconds to wait." example:"12"`
	Body            TakeAnswer

	violated []string // names of the limits that refuse
}

func (o *TakeOutput) Write(w http.ResponseWriter) {
	api.SetHeader(w, "RateLimit-Policy", o.RateLimitPolicy)
	api.SetHeader(w, "RateLimit", o.RateLimit)
	api.SetHeader(w, "Retry-After", o.RetryAfter)
	if o.Status == http.StatusTooManyRequests {
		api.WriteJSON(w, o.Status, web.ProblemType, newRefusal(o.Body, o.violated))
		return
	}
	api.WriteJSON(w, o.Status, api.JSONType, &o.Body)
}

// decide decides and counts. Its errors are those of limitError.
func (s *Service) decide(ctx context.Context, takes []limit.Take, list string) (limit.Answer, error) {
	answer, err := s.limiter.Take(ctx, takes)
	if err == nil {
		s.outcomes.countDecisions(&answer)
		return answer, nil
	}
	err = s.limitError(ctx, err, takes, list)
	s.outcomes.countFailures(takes, err)
	return answer, err
}

// newTakeOutput has the decisive decision at the top, so that a client reads the same fields for one take and
// for several.
func newTakeOutput(a *limit.Answer, several bool) *TakeOutput {
	decisive := a.Decisive()
	d := newTakeResult(decisive, a.Allowed)
	out := &TakeOutput{Status: http.StatusOK, Body: TakeAnswer{
		Allowed: a.Allowed, Certain: d.Certain, Remaining: d.Remaining, RetryAfter: d.RetryAfter,
		ResetsIn: d.ResetsIn, Limit: d.Limit, Source: d.Source, Settled: d.Settled,
	}}
	if shadow, would := a.Shadowed(); shadow {
		out.Body.Shadow, out.Body.WouldAllow = true, &would
	}
	out.Body.Repeated = !slices.ContainsFunc(a.Decisions, func(d limit.Decision) bool { return !d.Repeated })
	out.RateLimitPolicy, out.RateLimit = a.RateFields()
	if !a.Allowed {
		out.Status, out.RetryAfter = http.StatusTooManyRequests, limit.WholeSeconds(decisive.RetryAfter)
		out.violated = refusingLimits(a)
	}
	if !several {
		out.Body.Lease, out.Body.Ends, out.Body.EndsIn = d.Lease, d.Ends, d.EndsIn
		return out
	}
	for i := range a.Decisions {
		out.Body.Takes = append(out.Body.Takes, newTakeResult(&a.Decisions[i], a.Allowed))
	}
	return out
}

// newTakeResult returns one decision of an answer. A slot is held only if all takes were allowed.
func newTakeResult(d *limit.Decision, allAllowed bool) takeResult {
	out := takeResult{
		Limit: d.Take.Limit.Name, Key: d.Take.Caller, Allowed: d.Allowed, Certain: d.Certain,
		Remaining: d.Remaining, RetryAfter: ceilSeconds(d.RetryAfter), ResetsIn: ceilSeconds(d.Turn),
		Source: string(d.Source), Settled: d.Settled,
	}
	if d.Shadow {
		out.Shadow, out.WouldAllow = true, &d.WouldAllow
	}
	if allAllowed && d.EndsIn > 0 {
		out.Lease, out.Ends, out.EndsIn = d.Take.Lease, d.Ends, floorSeconds(d.EndsIn)
	}
	return out
}

// floorSeconds rounds down to milliseconds, so that a holder can rely on the time.
func floorSeconds(d time.Duration) float64 { return float64(d/time.Millisecond) / 1000 }

// ceilSeconds rounds a wait up to milliseconds, so that it is over by then.
func ceilSeconds(d time.Duration) float64 {
	return float64((d+time.Millisecond-1)/time.Millisecond) / 1000
}

func takeExample() TakeAnswer {
	return TakeAnswer{Allowed: true, Certain: true, Remaining: 4, Limit: "login", Source: "redis"}
}

func describeTakes(a *api.API, op *huma.Operation) {
	headers := rateHeaders("0", "12")
	headers["Retry-After"] = textHeader("Whole seconds to wait.", "12")
	refused := a.ProblemResponse("The hits are refused, and none is counted: ask again after retry_after.",
		refusedExample(), headers)
	refused.Content[web.ProblemType].Schema = api.SchemaOf[Refusal](a)
	op.Responses[strconv.Itoa(http.StatusTooManyRequests)] = refused
	describeForbidden(a, op)
}

func describeForbidden(a *api.API, op *huma.Operation) {
	op.Responses[strconv.Itoa(http.StatusForbidden)] = a.ProblemResponse(
		"The service counts no takes: QUERY_TAKE is off. Or the token is not about this limit and key. Or a browser "+
			"sent this for a page of another origin, or the service does not have this host name.",
		(&limits{mode: TakeOff}).checkCounting(), nil)
}

func rateHeaders(remaining, seconds string) map[string]*huma.Header {
	return map[string]*huma.Header{
		"RateLimit-Policy": textHeader("The limits: q hits in w seconds.", `"login";q=5;w=60`),
		"RateLimit": textHeader("What is left of them: r hits, for t seconds; if refused, t is the seconds "+
			"to wait.", fmt.Sprintf(`"login";r=%s;t=%s`, remaining, seconds)),
	}
}

func textHeader(about, example string) *huma.Header {
	return &huma.Header{Description: about, Schema: &huma.Schema{Type: huma.TypeString, Examples: []any{example}}}
}
