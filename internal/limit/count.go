package limit

import (
	"slices"
	"strings"

	"tallyroll/internal/hit"
)

// Count names the counters of what is decided under a limit.
type Count struct {
	Allowed     CounterNames // hits of allowed takes; of takes with a TTL, those that they are settled with
	Refused     CounterNames // hits of refused takes
	Returned    CounterNames // hits that were given back, or that a later settlement took away
	WouldRefuse CounterNames // hits of takes that a limit in shadow mode would have refused
	Nearly      CounterNames // takes, also refused ones, after which more than At of max is used
	At          int64        // hundredths of a percent; 0 without Nearly
}

// Whole is all of a max, in the unit of Count.At.
const Whole = 100_00

// MaxCounters is how many counters the same hits of a limit's key may have.
const MaxCounters = 3

// CounterNames are templates of which each counts all hits. An empty one counts nothing.
type CounterNames [MaxCounters]CounterName

// OfKeys returns the first template that has a counter per key, or "".
func (c CounterNames) OfKeys() CounterName {
	i := slices.IndexFunc(c[:], CounterName.HasKey)
	if i < 0 {
		return ""
	}
	return c[i]
}

// CounterName is a template of counters' names, such as usage.{limit}.{key}. {key} is its end; without it,
// all keys share a counter.
type CounterName string

// HasKey reports whether each key has a counter of its own.
func (c CounterName) HasKey() bool { return strings.HasSuffix(string(c), counterKey) }

const (
	counterLimit = "{limit}"
	counterKey   = "{key}"

	// CounterPattern is what a CounterName must match. The dots keep names of distinct limits apart.
	CounterPattern = `^((([^{}]*\{limit\}\.)+([^{}]*\.)?|[^{}]+\.)\{key\}|` +
		`([^{}]*\{limit\}\.)*([^{}]*\{limit\}|[^{}]*[^{}.]))$`
	// MaxCounterPrefix bounds a Prefix, in bytes: the rest of a counter's name is of the key.
	MaxCounterPrefix = hit.MaxName / 2
)

// Of returns the counter of a limit's key. A name that is too long ends with its hash.
func (c CounterName) Of(limit, key string) string {
	if !c.HasKey() {
		return c.Prefix(limit)
	}
	return string(hit.Shorten([]byte(c.Prefix(limit) + key)))
}

// Prefix returns what the counters of all keys of a limit begin with, and no others of this template: dots in
// the limit's name become colons, which it cannot have. Without {key} it is the counter.
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
		counters, n := names.Allowed, d.change
		switch {
		case !settle && !d.WouldAllow && d.Shadow:
			counters, n = names.WouldRefuse, d.Take.N
		case !settle && !d.WouldAllow:
			counters, n = names.Refused, d.Take.N
		case !a.Allowed: // by another limit
			n = 0
		case n < 0:
			counters, n = names.Returned, -n
		case !settle && d.Take.countsSettled():
			n = 0
		}
		if counters != (CounterNames{}) && n > 0 {
			l.Counted(counters, d.Take.Limit.Name, d.Take.Key, n)
		}
		if names.Nearly != (CounterNames{}) && d.Take.N > 0 && d.Remaining*Whole < d.Take.Limit.Max*(Whole-names.At) {
			l.Counted(names.Nearly, d.Take.Limit.Name, d.Take.Key, 1)
		}
	}
}
