package gate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"tallyroll/internal/limit"
	"tallyroll/internal/web"
)

// limitError turns an error of the limiter about takes into one for the client: an *InputError, or one
// that is or wraps a problem. What Redis said may tell about the network inside, so it goes only to the log.
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

// retryForbidden is how many seconds a client waits if Redis refuses: a person has to act first.
const retryForbidden = "60"

// prefixOf comes before the name of a field of a take. Of two that are the same, it is that of the second.
func prefixOf(take limit.Take, takes []limit.Take, several bool) string {
	for i := len(takes) - 1; i >= 0; i-- {
		if takes[i] == take {
			return itemPrefix(several, i)
		}
	}
	return ""
}

var refusedCommand = regexp.MustCompile(`'([a-z|]+)' command`)

// missingRight names the command that Redis refused, if it said which. What else it said has the user's name.
func missingRight(err error) string {
	m := refusedCommand.FindStringSubmatch(err.Error())
	if m == nil {
		return ""
	}
	return " (Redis refuses the command " + m[1] + ")"
}

// numbersName is the name in the fields of a limit that has none: the draft wants one.
const numbersName = "default"

// rateFields returns the fields RateLimit-Policy and RateLimit of
// draft-ietf-httpapi-ratelimit-headers-11. They have one item for each name: of several takes under it,
// that of the decisive one.
//
//	RateLimit-Policy: "login";q=5;w=60     5 hits in 60 seconds
//	RateLimit: "login";r=4;t=60            4 are available within 60 seconds; after a refusal: ask again in t seconds
//
// A limit in shadow mode is in neither: it is not applied, and a client that heeds the fields would hold back for it. Places
// are counted in the draft's own unit, and have no window: "exports";q=3;qu="concurrent-requests".
//
// r and t were what remains until a reset. They are the available quota and its effective window since revision 11,
// which is what a rolling window can say: its quota is never reset.
func rateFields(a *limit.Answer) (policy, rate string) {
	var names []string
	byName := make(map[string]limit.Answer, 1)
	for _, d := range a.Decisions {
		if d.Shadow {
			continue
		}
		name := policyName(d.Take.Limit)
		group, known := byName[name]
		if !known {
			names = append(names, name)
		}
		group.Decisions = append(group.Decisions, d)
		byName[name] = group
	}
	var policies, rates []string
	for _, name := range names {
		group := byName[name]
		d := group.Decisive()
		l := d.Take.Limit
		window := int64(l.Window / time.Second)
		t := strconv.FormatInt(window, 10)
		if !d.Allowed {
			t = wholeSeconds(d.RetryAfter)
		}
		if l.Policy == limit.Concurrent {
			policies = append(policies, fmt.Sprintf("%q;q=%d;qu=\"concurrent-requests\"", name, l.Max))
		} else {
			policies = append(policies, fmt.Sprintf("%q;q=%d;w=%d", name, l.Max, window))
		}
		rates = append(rates, fmt.Sprintf("%q;r=%d;t=%s", name, d.Remaining, t))
	}
	return strings.Join(policies, ", "), strings.Join(rates, ", ")
}

// violated returns the names of the limits that refuse, each once.
func violated(a *limit.Answer) (names []string) {
	for i := range a.Decisions {
		d := &a.Decisions[i]
		if name := policyName(d.Take.Limit); !d.Allowed && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// policyName is what the fields call a limit.
func policyName(l *limit.Limit) string { return cmp.Or(l.Name, numbersName) }

// wholeSeconds is a time to wait as Retry-After writes it: rounded up, and never 0, which clients
// would take for "at once".
func wholeSeconds(d time.Duration) string {
	return strconv.FormatInt(max(1, int64((d+time.Second-1)/time.Second)), 10)
}
