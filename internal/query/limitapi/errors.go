package limitapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/limit"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
)

// limitError turns the limiter's error into one for the client: an *InputError, or one that is or wraps a
// problem. list is the name of the body's list of takes, or "" for one take. What Redis wrote may describe
// the internal network, so it is only logged.
func (s *Service) limitError(ctx context.Context, err error, takes []limit.Take, list string) error {
	var bad *limit.TakeError
	var forbidden *limit.ForbiddenError
	var used *limit.IDError
	var foreign *limit.ForeignError
	switch {
	case errors.As(err, &bad):
		return web.BadInput(findPrefix(bad.Take, takes, list)+bad.Field, "%v", bad)
	case errors.As(err, &used):
		return idProblem(used)
	case ctx.Err() != nil:
		return web.ClientGone()
	case errors.As(err, &foreign):
		s.failures.Error().Ctx(ctx).Err(err).Msg("take not decided")
		return web.NewProblem(http.StatusInternalServerError, foreign.Error()).OfKind(web.ForeignKey)
	case errors.As(err, &forbidden):
		s.failures.Error().Ctx(ctx).Err(forbidden.Err).Msg("take not decided: Redis refuses its user a command")
		return web.RetryLater(forbidden.Error()+missingRight(forbidden.Err), retryForbidden).OfKind(web.RightsMissing)
	}
	s.redis.LogFailure(ctx, errors.Unwrap(err), "take not decided")
	why := "the limit is closed then"
	if down, ok := errors.AsType[*limit.UnavailableError](err); ok && down.Limit.Fail != limit.FailClosed {
		why = "this needs Redis" // a settlement, or something about a lease
	}
	if errors.Is(err, limit.ErrFull) {
		return web.RetryLater(fmt.Sprintf("Redis is full (maxmemory), and %s: ask again in a second, or ask the "+
			"operator to raise maxmemory or erase counters", why), "1")
	}
	return web.RetryLater(fmt.Sprintf("Redis cannot decide now, and %s: ask again in a second", why), "1")
}

func idProblem(e *limit.IDError) *web.Problem {
	kind := [...]*web.Kind{limit.IDReused: web.IdempotencyKeyReused, limit.IDUnknown: web.TakeUnknown,
		limit.IDNotSettled: web.NotSettled}[e.Reason]
	return web.NewProblem(kind.Status, e.Error()).OfKind(kind)
}

// describeIDs describes the problems of ids.
func describeIDs(a *api.API, op *huma.Operation, about string, reasons ...limit.IDReason) {
	for _, reason := range reasons {
		p := idProblem(&limit.IDError{Take: limit.Take{Limit: &limit.Limit{}, ID: "req-17"}, Reason: reason})
		op.Responses[strconv.Itoa(p.Status)] = a.ProblemResponse(about, p, nil)
	}
}

// retryForbidden is the wait, in seconds, if Redis refuses: an operator has to act first.
const retryForbidden = "60"

// findPrefix returns what precedes the name of a take's field. Of two equal takes, it is that of the second.
func findPrefix(take limit.Take, takes []limit.Take, list string) string {
	for i := len(takes) - 1; i >= 0; i-- {
		if takes[i] == take {
			return itemPrefix(list, i)
		}
	}
	return ""
}

// itemPrefix returns what precedes the names of fields of item i; list is the body's list, or "" for one
// item.
func itemPrefix(list string, i int) string {
	if list != "" {
		return fmt.Sprintf("%s[%d].", list, i)
	}
	return ""
}

var refusedCommand = regexp.MustCompile(`'([a-z|]+)' command`)

// missingRight names the command that Redis refused. The rest of its message has the user's name.
func missingRight(err error) string {
	m := refusedCommand.FindStringSubmatch(err.Error())
	if m == nil {
		return ""
	}
	return " (Redis refuses the command " + m[1] + ")"
}

// refusingLimits returns the names of the refusing limits, each once.
func refusingLimits(a *limit.Answer) (names []string) {
	for i := range a.Decisions {
		d := &a.Decisions[i]
		if name := d.Take.Limit.PolicyName(); !d.Allowed && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}
