package gate

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"tallyroll/internal/limit"
)

// numbersName is the name in the fields of a limit that has none: the draft wants one.
const numbersName = "default"

// rateFields returns the fields RateLimit-Policy and RateLimit of
// draft-ietf-httpapi-ratelimit-headers-11. They have one item for each name: of several takes under it,
// that of the decisive one.
//
//	RateLimit-Policy: "login";q=5;w=60     5 hits in 60 seconds
//	RateLimit: "login";r=4;t=60            4 are available within 60 seconds; after a refusal: ask again in t seconds
//
// r and t were what remains until a reset. They are the available quota and its effective window since revision 11,
// which is what a rolling window can say: its quota is never reset.
func rateFields(a *limit.Answer) (policy, rate string) {
	var names []string
	byName := make(map[string]limit.Answer, 1)
	for _, d := range a.Decisions {
		name := policyName(d.Take.Limit)
		of, known := byName[name]
		if !known {
			names = append(names, name)
		}
		of.Decisions = append(of.Decisions, d)
		byName[name] = of
	}
	var policies, rates []string
	for _, name := range names {
		of := byName[name]
		d := of.Decisive()
		l := d.Take.Limit
		window := int64(l.Window / time.Second)
		t := strconv.FormatInt(window, 10)
		if !d.Allowed {
			t = wholeSeconds(d.RetryAfter)
		}
		policies = append(policies, fmt.Sprintf("%q;q=%d;w=%d", name, l.Max, window))
		rates = append(rates, fmt.Sprintf("%q;r=%d;t=%s", name, d.Remaining, t))
	}
	return strings.Join(policies, ", "), strings.Join(rates, ", ")
}

// policyName is what the fields call a limit.
func policyName(l *limit.Limit) string { return cmp.Or(l.Name, numbersName) }

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

// wholeSeconds is a time to wait as Retry-After writes it: rounded up, and never 0, which clients
// would take for "at once".
func wholeSeconds(d time.Duration) string {
	return strconv.FormatInt(max(1, int64((d+time.Second-1)/time.Second)), 10)
}
