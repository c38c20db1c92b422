package limit

import (
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
