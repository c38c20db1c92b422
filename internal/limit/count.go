package limit

import (
	"slices"
	"strings"

	"tallyroll/internal/hit"
)

// Count names the counters of what is decided under a limit. An empty name counts nothing.
type Count struct {
	Allowed     CounterName // hits of allowed takes; of takes with a TTL, those that they are settled with
	Refused     CounterName // hits of refused takes
	Returned    CounterName // hits that were given back, or that a later settlement took away
	WouldRefuse CounterName // hits of takes that a limit in shadow mode would have refused
}

// CounterName is a template of counters' names, such as usage.{limit}.{key}. {key} is its end.
type CounterName string

const (
	counterLimit = "{limit}"
	counterKey   = "{key}"

	// CounterPattern is what a CounterName must match. The dots keep names of distinct limits apart.
	CounterPattern = `^(([^{}]*\{limit\}\.)+([^{}]*\.)?|[^{}]+\.)\{key\}$`
	// MaxCounterPrefix bounds a Prefix, in bytes: the rest of a counter's name is of the key.
	MaxCounterPrefix = hit.MaxName / 2
)

// Of returns the counter of a limit's key. A name that is too long ends with its hash.
func (c CounterName) Of(limit, key string) string {
	return string(hit.Shorten([]byte(c.Prefix(limit) + key)))
}

// Prefix returns what the counters of all keys of a limit begin with, and no others of this template: dots in
// the limit's name become colons, which it cannot have.
func (c CounterName) Prefix(limit string) string {
	return strings.ReplaceAll(strings.TrimSuffix(string(c), counterKey), counterLimit,
		strings.ReplaceAll(limit, ".", ":"))
}

// countsSettled reports whether counters get the hits of a take when it is settled: a TTL announces that, and
// counters only rise.
func (t *Take) countsSettled() bool { return t.TTL != 0 || t.Once }

// isCounted reports whether a counter may get what is decided.
func (r *request) isCounted() bool {
	return slices.ContainsFunc(r.takes, func(t Take) bool { return t.Limit.Count != Count{} })
}

// countHits counts on the limits' counters what was decided. It is the only place that does.
// docs/limits-counters.md has the cases.
func (l *Limiter) countHits(a *Answer, settle bool) {
	for i := range a.Decisions {
		d := &a.Decisions[i]
		names := &d.Take.Limit.Count
		counter, n := names.Allowed, d.change
		switch {
		case !settle && !d.WouldAllow && d.Shadow:
			counter, n = names.WouldRefuse, d.Take.N
		case !settle && !d.WouldAllow:
			counter, n = names.Refused, d.Take.N
		case !a.Allowed: // by another limit
			n = 0
		case n < 0:
			counter, n = names.Returned, -n
		case !settle && d.Take.countsSettled():
			n = 0
		}
		if counter != "" && n > 0 {
			l.Counted(counter, d.Take.Limit.Name, d.Take.Key, n)
		}
	}
}
