package watch

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"time"

	"tallyroll/internal/limit"
	"tallyroll/internal/limit/limitfile"
	"tallyroll/internal/platform/human"
	"tallyroll/internal/window"
	"tallyroll/internal/window/calendar"
)

// Rule is one rule of the file.
type Rule struct {
	Name string
	// Exactly one of Key, Prefix, Top and All is set: one counter; the sum of all counters with a prefix, or
	// with Group, one sum for each first Group parts of their names, or with Each, every one that is above the
	// threshold; each of the Top counters with the most hits; the sum of all hits.
	Key    string
	Prefix *string
	Top    int
	All    bool
	Group  int
	Each   bool
	Limit  *limitfile.Limit // the keys of its counters, which begin with Prefix, have a state; nil: counters have

	Window    window.Span // up to now
	Condition Condition
	For       time.Duration // how long the condition must hold before the rule fires
	To        []string      // names of targets

	line int // of its window in the file
}

// hasManyKeys reports whether the rule has a state per key, and keys come and go.
func (r *Rule) hasManyKeys() bool { return r.hasCounters() || r.Group > 0 }

// hasCounters reports whether the rule has a state for each of many counters.
func (r *Rule) hasCounters() bool { return r.Top > 0 || r.Each }

// kindOfKey returns what the keys of its states are: "group", "prefix", "all" for the empty key of the sum of
// all hits, or "" if they are counters.
func (r *Rule) kindOfKey() string {
	switch {
	case r.All:
		return "all"
	case r.Group > 0:
		return "group"
	case r.Prefix != nil && !r.Each:
		return "prefix"
	}
	return ""
}

// limitName returns the name of the limit that the rule is about; empty: it is about counters.
func (r *Rule) limitName() string {
	if r.Limit == nil {
		return ""
	}
	return r.Limit.Name
}

// key returns the key of the rule's own state, which is empty if the rule has many keys.
func (r *Rule) key() string {
	switch {
	case r.hasManyKeys():
		return ""
	case r.Prefix != nil:
		return *r.Prefix
	}
	return r.Key
}

// window returns the window as targets receive it, and a calendar's zone, which is empty for UTC.
func (r *Rule) window() (text, zone string) {
	var in *time.Location
	switch w := r.Window.Calendar.(type) {
	case calendar.Window:
		text, in = w.Name, w.Zone
	case *calendar.Period:
		text, in = w.String(), w.Zone()
	default:
		return human.FormatDuration(r.Window.Length), ""
	}
	if in != time.UTC {
		zone = in.String()
	}
	return text, zone
}

// previousWindow is the window that ends where the current one starts.
type previousWindow time.Duration

func (b previousWindow) Range(now int64) window.Range {
	length := time.Duration(b).Milliseconds()
	return window.Range{From: now - 2*length, To: now - length}
}

type Kind string

const (
	Above     Kind = "above"  // more hits than a threshold
	Below     Kind = "below"  // fewer
	ByPercent Kind = "change" // more or less than in the previous window, by a percentage
)

// Condition must hold for a rule to fire.
type Condition struct {
	Kind      Kind
	Threshold int64 // hits; of ByPercent, hundredths of a percent, negative for less
	Surely    bool  // it must hold for every value within the bounds
	Least     int64 // of ByPercent: hits that one of the windows must certainly have
}

// String returns the condition, human-readable, such as "above 100 surely".
func (c Condition) String() string {
	text := fmt.Sprintf("%s %d", c.Kind, c.Threshold)
	if c.Kind == ByPercent {
		text = fmt.Sprintf("change %+g%% least %d", float64(c.Threshold)/100, c.Least)
	}
	if c.Surely {
		text += " surely"
	}
	return text
}

// unknownBound is an unknown number, null in JSON.
const unknownBound = window.Unbounded

// Figures are the hits of a window with their bounds.
type Figures struct {
	Total, Lower, Upper int64
	Fresh               bool // a worker is counting, so Upper is a bound
	Complete            bool // no hit is known to be missing
	Young               bool // not complete, because counting began inside the window
}

func (f Figures) upperBound() window.Bound {
	if !f.Fresh {
		return unknownBound
	}
	return window.Bound(f.Upper)
}

func (f Figures) isKnown() bool { return f.Fresh && f.Complete }

// unknownReason returns why the figures are not fresh or not complete, or "".
func (f Figures) unknownReason() string {
	switch {
	case !f.Fresh:
		return reasonStale
	case f.Young:
		return reasonYoung
	case !f.Complete:
		return reasonLost
	}
	return ""
}

// add adds another counter's figures of the same window. Sums saturate.
func (f *Figures) add(o Figures) {
	f.Total, f.Lower, f.Upper = addSaturating(f.Total, o.Total), addSaturating(f.Lower, o.Lower),
		addSaturating(f.Upper, o.Upper)
	f.Fresh, f.Complete, f.Young = f.Fresh && o.Fresh, f.Complete && o.Complete, f.Young || o.Young
}

func addSaturating(a, b int64) int64 {
	return a + min(b, math.MaxInt64-a)
}

// Verdict is the result of a condition.
type Verdict int

// Undecided, the zero value, means unknown.
const (
	Undecided Verdict = iota
	Holds
	DoesNotHold
)

// The reasons for Undecided.
const (
	reasonStale    = "nobody has counted lately"
	reasonLost     = "hits of the window are missing"
	reasonYoung    = "counting began inside the window"
	reasonNoRedis  = "Redis does not answer"
	reasonNoLayout = "nobody has counted in this namespace yet"
	reasonStates   = "more keys than the rule's share of WATCH_MAX_STATES allows"
)

// evaluate compares the figures of the current window and, for ByPercent, of the previous one. It gives a
// reason if the verdict is Undecided. A lower bound decides even if no worker counts, because missing and
// uncounted hits can only add to it. All other decisions need fresh and complete figures.
func (c Condition) evaluate(current, previous Figures) (Verdict, string) {
	holds, fails, known := false, false, current.isKnown()
	switch c.Kind {
	case Above:
		holds = current.Lower > c.Threshold || known && !c.Surely && current.Total > c.Threshold
	case Below:
		fails = current.Lower >= c.Threshold
		holds = known && (current.Upper < c.Threshold || !c.Surely && current.Total < c.Threshold)
	case ByPercent:
		known = known && previous.isKnown()
		rise, fall := current.Lower > previous.Upper && !c.isLess(current.Lower, previous.Upper),
			current.Upper < previous.Lower && !c.isMore(current.Upper, previous.Lower)
		switch {
		case c.Threshold > 0:
			holds = previous.isKnown() && rise || known && !c.Surely && current.Total > previous.Total &&
				!c.isLess(current.Total, previous.Total)
		default:
			fails = previous.isKnown() && c.isMore(current.Lower, previous.Upper)
			holds = known && (fall || !c.Surely && current.Total < previous.Total &&
				!c.isMore(current.Total, previous.Total))
		}
		holds = holds && max(current.Lower, previous.Lower) >= c.Least
	}
	switch {
	case holds:
		return Holds, ""
	case fails || known:
		return DoesNotHold, ""
	}
	reason := current.unknownReason()
	if reason == "" {
		reason = previous.unknownReason()
	}
	return Undecided, reason
}

// isLess and isMore compare hits with those of the previous window, changed by the threshold.
func (c Condition) isLess(current, previous int64) bool { return c.compare(current, previous) < 0 }
func (c Condition) isMore(current, previous int64) bool { return c.compare(current, previous) > 0 }

func (c Condition) compare(current, previous int64) int {
	currentHigh, currentLow := bits.Mul64(uint64(current), limit.Whole)
	previousHigh, previousLow := bits.Mul64(uint64(previous), uint64(limit.Whole+c.Threshold))
	return cmp.Or(cmp.Compare(currentHigh, previousHigh), cmp.Compare(currentLow, previousLow))
}
