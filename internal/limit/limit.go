package limit

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"tallyroll/internal/window"
)

// The bounds of a limit.
const (
	MinWindow = time.Second
	MaxWindow = 366 * 24 * time.Hour
	// MaxHits is the largest max of a limit with the policy Cells.
	MaxHits = 1_000_000_000
	// MaxExactHits is the largest max of a limit whose policy keeps every hit: 100,000 hits take some
	// 13 MB of Redis per key.
	MaxExactHits = 100_000
	// MaxLogTake is how many hits the takes of one request can have together under limits of the policy Log, which
	// keeps each of them: 1000 take Redis about a millisecond, in which it does nothing else.
	MaxLogTake = 1000
	// MaxName is how many bytes the name of a limit can have.
	MaxName = 64
)

// Policy is how hits are kept for a limit.
type Policy string

const (
	// Cells keeps at most 64 numbers per key. A hit in the oldest cell counts in proportion to the part of the
	// cell that the window still covers.
	Cells Policy = "cells"
	// Log keeps a member of a sorted set per hit. It is exact to the millisecond.
	Log Policy = "log"
	// Stream keeps an entry of a Redis stream per take. It is exact to the millisecond.
	Stream Policy = "stream"
)

// Policies are all policies. The first is the default.
var Policies = []Policy{Cells, Log, Stream}

// Fail is what happens to a take while Redis cannot be asked.
type Fail string

const (
	// FailLocal decides with a ring of cells in this process.
	FailLocal Fail = "local"
	// FailOpen allows every take and counts nothing.
	FailOpen Fail = "open"
	// FailClosed refuses every take with an *UnavailableError.
	FailClosed Fail = "closed"
)

// Fails are all fail modes. The first is the default.
var Fails = []Fail{FailLocal, FailOpen, FailClosed}

// Limit is a number of hits that a key may have in a window that ends now.
type Limit struct {
	Name   string // empty if the numbers come with the request
	Window time.Duration
	Max    int64
	Policy Policy
	Fail   Fail
	Key    Template // makes the key that hits are kept under
	Envoy  []Descriptor
}

var namePattern = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// FieldError is about one field of a limit: window, max, policy or fail.
type FieldError struct{ Field, Message string }

func (e *FieldError) Error() string { return e.Field + ": " + e.Message }

// check fills in what is not set, and refuses what is out of bounds. The error is a *FieldError.
func (l *Limit) check() error {
	if l.Policy == "" {
		l.Policy = Policies[0]
	}
	if l.Fail == "" {
		l.Fail = Fails[0]
	}
	if !slices.Contains(Policies, l.Policy) {
		return &FieldError{"policy", fmt.Sprintf("%.64q: allowed are %s", string(l.Policy), list(Policies))}
	}
	if !slices.Contains(Fails, l.Fail) {
		return &FieldError{"fail", fmt.Sprintf("%q: allowed are %s", string(l.Fail), list(Fails))}
	}
	if l.Window < MinWindow || l.Window > MaxWindow {
		return &FieldError{"window", fmt.Sprintf("%s: allowed is %s to %s", window.FormatDuration(l.Window), window.FormatDuration(MinWindow), window.FormatDuration(MaxWindow))}
	}
	most := int64(MaxHits)
	if l.Policy != Cells {
		most = MaxExactHits
	}
	if l.Max < 1 || l.Max > most {
		return &FieldError{"max", fmt.Sprintf("%d: allowed is 1 to %d with the policy %s", l.Max, most, l.Policy)}
	}
	return nil
}

// Adhoc returns the limit that a request gives with its numbers. The error is a *FieldError.
func Adhoc(length time.Duration, most int64, policy Policy) (*Limit, error) {
	l := &Limit{Window: length, Max: most, Policy: policy}
	return l, l.check()
}

func list[T ~string](all []T) string {
	names := make([]string, len(all))
	for i, a := range all {
		names[i] = string(a)
	}
	return strings.Join(names, ", ")
}

// Take is what a caller asks for: n hits of a key under a limit. A negative n gives hits back. With n 0
// nothing is counted.
type Take struct {
	Limit *Limit
	Key   string // of the caller: takes with the same key share a hash tag
	Under string // what Limit.Key makes of it: hits are kept under this
	N     int64
}

// TooManyError is a take of more hits than its limit ever allows.
type TooManyError struct{ Take Take }

func (e *TooManyError) Error() string {
	return fmt.Sprintf("%d hits at once: the limit never allows more than %d", e.Take.N, e.Take.Limit.Max)
}

// TooLargeError is takes of more hits of the policy Log than one request can have.
type TooLargeError struct {
	Take Take  // the first that is too much
	N    int64 // the hits of the takes up to it
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("%d hits of the policy log at once: at most %d are allowed in one request: ask several times, or use the policy stream", e.N, MaxLogTake)
}

// TwiceError means that a limit and a key are twice among takes that were asked for together.
type TwiceError struct{ Take Take }

func (e *TwiceError) Error() string {
	return "the same limit and key twice: write one take with the sum as its n"
}

// Source is where a decision comes from.
type Source string

const (
	FromRedis  Source = "redis"
	FromMemory Source = "memory" // Redis had refused the same, and has told until when
	FromLocal  Source = "local"  // Redis could not be asked: the limit's fail mode decided
)

// Decision is about one take.
type Decision struct {
	Take    Take
	Allowed bool
	// Certain is false if the hits of the oldest cell decide, and it is not known which of them are still in the
	// window. It is false, too, if Redis could not be asked.
	Certain bool
	// Remaining is how many more hits would be allowed now.
	Remaining int64
	// RetryAfter is the time until the take would be allowed if no other hits came. It is 0 if it is allowed.
	// From memory it can be shorter, if fewer hits were refused before: it is theirs.
	RetryAfter time.Duration
	Source     Source
	// Lower and Upper bound the hits that are in the window now. The policies log and stream
	// know them exactly.
	Lower, Upper int64
}

// Answer is about takes that were asked for together.
type Answer struct {
	// Allowed is true if every take was allowed. Only then has any been counted.
	Allowed bool
	// Decisions are in the order of the takes. If memory refused some of the takes, only they are there.
	Decisions []Decision
}

// Decisive returns the decision that says most about the whole: of those that refused, the one that takes
// longest to wait for; otherwise the one with the least left.
func (a *Answer) Decisive() *Decision {
	out := &a.Decisions[0]
	for i := range a.Decisions[1:] {
		d := &a.Decisions[i+1]
		switch {
		case out.Allowed != d.Allowed:
			if out.Allowed {
				out = d
			}
		case d.Allowed && d.Remaining < out.Remaining, !d.Allowed && d.RetryAfter > out.RetryAfter:
			out = d
		}
	}
	return out
}
