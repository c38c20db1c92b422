package limit

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// numbersName stands in the fields for a limit without a name: the draft requires one.
const numbersName = "default"

// PolicyName is the limit's name in the fields.
func (l *Limit) PolicyName() string { return cmp.Or(l.Name, numbersName) }

// RateFields returns the fields RateLimit-Policy and RateLimit of draft-ietf-httpapi-ratelimit-headers-11,
// with one item per name: that of the decisive take.
//
//	RateLimit-Policy: "login";q=5;w=60     5 hits in 60 seconds
//	RateLimit: "login";r=4;t=60            4 are available within 60 seconds; after a refusal: ask again in t seconds
//
// Limits in shadow mode are in neither, because a client that heeds the fields would hold back for them.
// Slots have the draft's own unit and no window: "exports";q=3;qu="concurrent-requests". Since revision 11, r
// and t are the available quota and its effective window, which need no reset: a rolling window has none.
func (a *Answer) RateFields() (policy, rate string) {
	var names []string
	byName := make(map[string]Answer, 1)
	for _, d := range a.Decisions {
		if d.Shadow {
			continue
		}
		name := d.Take.Limit.PolicyName()
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
			t = WholeSeconds(d.RetryAfter)
		}
		if l.Policy == Concurrent {
			policies = append(policies, fmt.Sprintf("%q;q=%d;qu=\"concurrent-requests\"", name, l.Max))
		} else {
			policies = append(policies, fmt.Sprintf("%q;q=%d;w=%d", name, l.Max, window))
		}
		rates = append(rates, fmt.Sprintf("%q;r=%d;t=%s", name, d.Remaining, t))
	}
	return strings.Join(policies, ", "), strings.Join(rates, ", ")
}

// WholeSeconds formats a wait for Retry-After: rounded up, and never 0, which clients read as "at once".
func WholeSeconds(d time.Duration) string {
	return strconv.FormatInt(max(1, int64((d+time.Second-1)/time.Second)), 10)
}
