package gate

import (
	"context"
	"errors"
	"net/http"
	"regexp"
	"slices"

	"tallyroll/internal/limit"
	"tallyroll/internal/web"
)

// limitError turns the limiter's error into one for the client: an *InputError, or one that is or wraps a
// problem. What Redis wrote may describe the internal network, so it is only logged.
func (g *Gate) limitError(ctx context.Context, err error, takes []limit.Take, several bool) error {
	var many *limit.TooManyError
	var large *limit.TooLargeError
	var twice *limit.TwiceError
	var forbidden *limit.ForbiddenError
	var foreign *limit.ForeignError
	var lease *limit.LeaseError
	switch {
	case errors.As(err, &lease):
		return web.BadInput(prefixOf(lease.Take, takes, several)+lease.Field, "%v", lease)
	case errors.As(err, &many):
		return web.BadInput(prefixOf(many.Take, takes, several)+"n", "%v", many)
	case errors.As(err, &large):
		return web.BadInput(prefixOf(large.Take, takes, several)+"n", "%v", large)
	case errors.As(err, &twice):
		return web.BadInput(prefixOf(twice.Take, takes, several)+"key", "%v", twice)
	case ctx.Err() != nil:
		return web.ClientGone()
	case errors.As(err, &foreign):
		g.failures.Error().Ctx(ctx).Err(err).Msg("take not decided")
		return web.NewProblem(http.StatusInternalServerError, foreign.Error()).OfKind(web.ForeignKey)
	case errors.As(err, &forbidden):
		g.failures.Error().Ctx(ctx).Err(forbidden.Err).Msg("take not decided: Redis refuses its user a command")
		return web.RetryLater(forbidden.Error()+missingRight(forbidden.Err), retryForbidden).OfKind(web.RightsMissing)
	}
	g.redis.LogFailure(ctx, errors.Unwrap(err), "take not decided")
	if errors.Is(err, limit.ErrFull) {
		return web.RetryLater("Redis has no memory left for hits, and the limit is closed then: ask again in a second, or whoever runs the service for more memory (maxmemory)", "1")
	}
	return web.RetryLater("Redis cannot decide now, and the limit is closed then: ask again in a second", "1")
}

// retryForbidden is the wait, in seconds, if Redis refuses: an operator has to act first.
const retryForbidden = "60"

// prefixOf comes before the name of a take's field. Of two equal takes, it is that of the second.
func prefixOf(take limit.Take, takes []limit.Take, several bool) string {
	for i := len(takes) - 1; i >= 0; i-- {
		if takes[i] == take {
			return itemPrefix(several, i)
		}
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

// violated returns the names of the refusing limits, each once.
func violated(a *limit.Answer) (names []string) {
	for i := range a.Decisions {
		d := &a.Decisions[i]
		if name := d.Take.Limit.PolicyName(); !d.Allowed && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}
