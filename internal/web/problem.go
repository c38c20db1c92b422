package web

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// Kind is a kind of problem that clients handle differently. Its type is stable; a detail's wording is not.
type Kind struct {
	Name   string // the fragment of the type is problem-Name
	Status int
	Title  string
	Do     string // what a client does about it
}

// Kinds that must be distinguished from others with the same status.
var (
	IdempotencyKeyReused = &Kind{"idempotency-key-reused", http.StatusUnprocessableEntity,
		"Idempotency key used for something else", "take a new key for new hits; nothing of this request is stored"}
	TakeUnknown = &Kind{"take-unknown", http.StatusNotFound, "No take of this id", "settle under the limits and " +
		"keys as taken, within ttl; otherwise the hits stay counted as taken"}
	NotSettled = &Kind{"not-settled", http.StatusUnprocessableEntity, "It cannot be settled",
		"settle takes of 1 hit or more, under the policy cells or log"}
	KeyOutsidePrefix = &Kind{"key-outside-prefix", http.StatusForbidden, "Key outside of the token's prefix",
		"correct the keys, or use another token"}
	LimitOutsideToken = &Kind{"limit-outside-token", http.StatusForbidden, "Limit outside of the token's limits",
		"correct limit and key, or use another token"}
	TokenLacksRight = &Kind{"token-lacks-right", http.StatusForbidden, "The token lacks a right",
		"use a token that has the right that detail names"}
	NotStored = &Kind{"not-stored", http.StatusServiceUnavailable, "Not stored",
		"send the same again after Retry-After: nothing of it is stored"}
	StoredUnknown = &Kind{"stored-unknown", http.StatusGatewayTimeout, "Stored or not is unknown",
		"send the same again with the same Idempotency-Key, or accept that it may count twice"}
	ForeignOrigin = &Kind{"foreign-origin", http.StatusForbidden, "Sent for a page of another origin",
		"ask from the service's own page or from a server, or ask the operator for the setting that detail names"}
	UnknownHost = &Kind{"unknown-host", http.StatusForbidden, "Not a name of the service",
		"ask for the service's address, or ask the operator for the setting that detail names"}
	TakesOff = &Kind{"takes-off", http.StatusForbidden, "No takes are counted", "only look, or ask the operator " +
		"for QUERY_TAKE"}
	EraseOff     = &Kind{"erase-off", http.StatusForbidden, "Nothing is erased", "ask the operator for QUERY_ERASE"}
	NotConfirmed = &Kind{"not-confirmed", http.StatusConflict, "More than was confirmed",
		"list what there is, and ask again with the number that detail names"}
	LeaseEnded = &Kind{"lease-ended", http.StatusConflict, "The lease has ended", "stop what needs the slot, or " +
		"acquire a new one"}
	TooManyExports = &Kind{"too-many-exports", http.StatusTooManyRequests, "Too many exports at once",
		"ask the same again after Retry-After"}
	NothingCounted = &Kind{"nothing-counted", http.StatusServiceUnavailable, "Nothing has been counted yet",
		"ask the operator to start ingest"}
	NotYet = &Kind{"not-yet", http.StatusServiceUnavailable, "Not counted yet",
		"ask the same again after Retry-After, or with a longer wait"}
	TooOld = &Kind{"too-old", http.StatusServiceUnavailable, "Counting is behind",
		"ask the same again after Retry-After, or with a longer max_age"}
	RightsMissing = &Kind{"rights-missing", http.StatusServiceUnavailable, "Redis refuses its user a command",
		"ask the operator to give the Redis user its rights"}
	ForeignKey = &Kind{"foreign-key", http.StatusInternalServerError, "Another program has written to a key",
		"ask the operator to look at the key that detail names"}
)

var byStatus = []*Kind{
	{Name: "bad-request", Status: http.StatusBadRequest, Do: "correct what detail and errors name"},
	{Name: "unauthorized", Status: http.StatusUnauthorized, Do: "send Authorization: Bearer with a token that " +
		"is known"},
	{Name: "forbidden", Status: http.StatusForbidden, Do: "nothing: not allowed from there"},
	{Name: "not-found", Status: http.StatusNotFound, Do: "see /docs for what there is"},
	{Name: "method-not-allowed", Status: http.StatusMethodNotAllowed, Do: "use a method of Allow"},
	{Name: "request-timeout", Status: http.StatusRequestTimeout, Do: "send the body without pauses"},
	{Name: "too-large", Status: http.StatusRequestEntityTooLarge, Do: "ask or send in parts; detail names the setting"},
	{Name: "unsupported-media-type", Status: http.StatusUnsupportedMediaType, Do: "send one of the types or " +
		"encodings that detail names"},
	{Name: "fault", Status: http.StatusInternalServerError, Do: "report it to the operator: the log has more"},
	{Name: "not-configured", Status: http.StatusNotImplemented, Do: "ask the operator for the setting that " +
		"detail names"},
	{Name: "unavailable", Status: http.StatusServiceUnavailable, Do: "ask the same again after Retry-After"},
}

// Kinds lists all kinds by status.
func Kinds() []*Kind {
	all := append([]*Kind{IdempotencyKeyReused, TakeUnknown, NotSettled, KeyOutsidePrefix, LimitOutsideToken,
		TokenLacksRight, NotStored, StoredUnknown, ForeignOrigin, UnknownHost, TakesOff, EraseOff, NotConfirmed,
		LeaseEnded, TooManyExports, NothingCounted, NotYet, TooOld, RightsMissing, ForeignKey}, byStatus...)
	slices.SortStableFunc(all, func(a, b *Kind) int {
		return cmp.Or(cmp.Compare(a.Status, b.Status), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// QuotaExceeded is the type of a refused take, registered by draft-ietf-httpapi-ratelimit-headers.
const QuotaExceeded = "https://iana.org/assignments/http-problem-types#quota-exceeded"

// Problem is an error in the form of RFC 9457.
type Problem struct {
	Type   string          `json:"type" format:"uri-reference" doc:"The kind of problem, for programs: /docs lists them." example:"/docs#problem-bad-request"`
	Title  string          `json:"title" doc:"The kind of problem, human-readable: the name of the status, if that is enough." example:"Bad Request"`
	Status int             `json:"status" doc:"The HTTP status." example:"400"`
	Detail string          `json:"detail" doc:"One sentence: what was wrong and what is allowed." example:"window: \"24\" is not a duration: write a whole number and a unit (s, m, h, d, w, y), such as 90s, 15m or 7d"`
	Errors []ProblemDetail `json:"errors,omitempty" doc:"Where the request was wrong, item by item." example:"[{\"location\":\"query.window\",\"message\":\"\\\"24\\\" is not a duration\"}]"`

	headers http.Header
}

// ProblemDetail is about one part of a request.
type ProblemDetail struct {
	Location string `json:"location,omitempty" doc:"Where: query or body, and the name of the parameter or field." example:"query.window"`
	Message  string `json:"message" doc:"What was wrong there." example:"\"24\" is not a duration"`
}

// ProblemType is the content type of a problem.
const ProblemType = "application/problem+json"

func (p *Problem) Error() string { return p.Detail }

func (p *Problem) GetStatus() int { return p.Status }

func (p *Problem) ContentType(string) string { return ProblemType }

// OfKind makes the problem one of a kind.
func (p *Problem) OfKind(k *Kind) *Problem {
	p.Type, p.Title = k.Type(), k.Title
	return p
}

// Headers are those that WithHeader has added.
func (p *Problem) Headers() http.Header { return p.headers }

// Write sends the problem.
func (p *Problem) Write(w http.ResponseWriter) {
	maps.Copy(w.Header(), p.headers)
	w.Header().Set("Content-Type", ProblemType)
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // the client may be gone; an error has no other recipient
}

// The parts of a request that can hold parameters, as problems name them.
const (
	InQuery = "query"
	InBody  = "body"
)

// InputError is an error that the client can correct in its request.
type InputError struct {
	Status  int
	Param   string // as it is called in the request
	message string // what was wrong and what is allowed
}

func (e *InputError) Error() string { return e.Param + ": " + e.message }

// BadInput is a 400 about a parameter.
func BadInput(param, format string, args ...any) *InputError {
	return &InputError{http.StatusBadRequest, param, fmt.Sprintf(format, args...)}
}

// TooMuchInput is a 413 about a parameter.
func TooMuchInput(param, format string, args ...any) *InputError {
	return &InputError{http.StatusRequestEntityTooLarge, param, fmt.Sprintf(format, args...)}
}

// AddHint adds a hint of what else is allowed to an error about a parameter.
func AddHint(err error, hint string) {
	var bad *InputError
	if errors.As(err, &bad) {
		bad.message += "; or " + hint
	}
}

// InputProblem returns the problem of an *InputError, and any other error unchanged.
func InputProblem(err error, part string) error {
	var bad *InputError
	if errors.As(err, &bad) {
		return bad.Problem(part)
	}
	return err
}

// Problem returns the problem for a parameter in InQuery or InBody.
func (e *InputError) Problem(part string) *Problem {
	return NewProblem(e.Status, "", ProblemDetail{Location: part + "." + e.Param, Message: e.message})
}

// ProblemOf returns the problem that an error is or wraps, or else that of a fault of the service.
func ProblemOf(err error) *Problem {
	var p *Problem
	if errors.As(err, &p) {
		return p
	}
	return NewProblem(http.StatusInternalServerError, "a fault of this service: "+err.Error())
}

// statusClientGone is nginx's status for a client that did not wait. It is never read; in the metrics it
// keeps impatience apart from trouble with Redis.
const statusClientGone = 499

// ClientGone is the problem for a client that did not wait.
func ClientGone() *Problem { return NewProblem(statusClientGone, "the client is gone") }

// IsClientGone reports whether an error is, or wraps, ClientGone.
func IsClientGone(err error) bool {
	p, ok := errors.AsType[*Problem](err)
	return ok && p.Status == statusClientGone
}

// RetryLater is a 503 with the seconds after which to ask again.
func RetryLater(detail, seconds string) *Problem {
	return NewProblem(http.StatusServiceUnavailable, detail).WithHeader("Retry-After", seconds)
}

// WithHeader adds a header to the answer.
func (p *Problem) WithHeader(name, value string) *Problem {
	if p.headers == nil {
		p.headers = make(http.Header)
	}
	p.headers.Set(name, value)
	return p
}

// blank is the type of a problem whose status is sufficient (RFC 9457, 4.2.1).
const blank = "about:blank"

// NewProblem returns a problem of the status's kind, from a message or from details, if there are any.
func NewProblem(status int, message string, details ...ProblemDetail) *Problem {
	p := &Problem{Type: blank, Title: http.StatusText(status), Status: status, Detail: message, Errors: details}
	for _, k := range byStatus {
		if k.Status == status {
			p.Type = k.Type()
		}
	}
	if len(details) == 0 {
		return p
	}
	sentences := make([]string, len(details))
	for i, d := range details {
		sentences[i] = d.Message
		if _, name, ok := strings.Cut(d.Location, "."); ok {
			sentences[i] = name + ": " + d.Message
		}
	}
	p.Detail = strings.Join(sentences, "; ")
	return p
}

// Type is a kind's URI reference, into the list on the service's own page: installations share no address.
func (k *Kind) Type() string { return "/docs#problem-" + k.Name }

// Excerpt quotes a value of the request, cut if it is long.
func Excerpt(s string) string {
	const most = 64
	if len(s) > most {
		return fmt.Sprintf("%q…", s[:most])
	}
	return fmt.Sprintf("%q", s)
}
