package query

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"tallyroll/internal/limit"
)

// numbersName is the name in the fields of a limit that has none: the draft wants one.
const numbersName = "default"

// rateFields returns the fields RateLimit-Policy and RateLimit of
// draft-ietf-httpapi-ratelimit-headers-10. They have one item for each name: of several takes under it,
// that of the decisive one.
//
//	RateLimit-Policy: "login";q=5;w=60     5 hits in 60 seconds
//	RateLimit: "login";r=4;t=60            4 are left for 60 seconds; after a refusal: ask again in t seconds
func rateFields(a *limit.Answer) (policy, rate string) {
	var names []string
	byName := make(map[string]limit.Answer, 1)
	for _, d := range a.Decisions {
		name := d.Take.Limit.Name
		if name == "" {
			name = numbersName
		}
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

// wholeSeconds is a time to wait as Retry-After writes it: rounded up, and never 0, which clients
// would take for "at once".
func wholeSeconds(d time.Duration) string {
	return strconv.FormatInt(max(1, int64((d+time.Second-1)/time.Second)), 10)
}
