package watch

import (
	"math"
	"math/bits"
	"time"

	"tallyroll/internal/window"
)

// Rule is one rule of the file.
type Rule struct {
	Name string
	// Exactly one of Key, Prefix and Top is set: one counter; the sum of all counters with a prefix, or with
	// Group, one sum for each first Group parts of their names; each of the Top counters with the most hits.
	Key    string
	Prefix *string
	Top    int
	Group  int

	Window    time.Duration
	Condition Condition
	For       time.Duration // how long the condition must hold before the rule fires
	To        []string      // names of targets

	line int // of its window in the file
}

// many reports whether the rule has group or top: a state per key, and keys come and go.
func (r *Rule) many() bool { return r.Top > 0 || r.Group > 0 }

// key returns the key of the rule's own state, which is empty if the rule has many keys.
func (r *Rule) key() string {
	switch {
	case r.many():
		return ""
	case r.Prefix != nil:
		return *r.Prefix
	}
	return r.Key
}

// before is the window that ends where the current one starts.
type before time.Duration

func (b before) Range(now int64) window.Range {
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

// Figures are the hits of a window with their bounds.
type Figures struct {
	Total, Lower, Upper int64
	Fresh               bool // a worker is counting, so Upper is a bound
	Complete            bool // no hit is known to be missing
	Young               bool // not complete, because counting began inside the window
}

func (f Figures) most() window.Bound {
	if !f.Fresh {
		return unread
	}
	return window.Bound(f.Upper)
}

func (f Figures) known() bool { return f.Fresh && f.Complete }

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
	f.Total, f.Lower, f.Upper = addUpTo(f.Total, o.Total), addUpTo(f.Lower, o.Lower), addUpTo(f.Upper, o.Upper)
	f.Fresh, f.Complete, f.Young = f.Fresh && o.Fresh, f.Complete && o.Complete, f.Young || o.Young
}

func addUpTo(a, b int64) int64 {
	return a + min(b, math.MaxInt64-a)
}

// Verdict is the result of a condition.
type Verdict int

// NobodyKnows, the zero value, means unknown.
const (
	NobodyKnows Verdict = iota
	Holds
	HoldsNot
)

// The reasons for NobodyKnows.
const (
	reasonStale  = "nobody has counted lately"
	reasonLost   = "hits of the window are missing"
	reasonYoung  = "counting began inside the window"
	reasonBlind  = "Redis does not answer"
	reasonEmpty  = "nobody has counted in this namespace yet"
	reasonStates = "more keys than the rule's share of WATCH_MAX_STATES allows"
)

// judge compares the figures of the current window and, for ByPercent, of the previous one. It gives a reason
// if the verdict is NobodyKnows. A lower bound decides even if no worker counts, because missing and uncounted
// hits can only add to it. All other decisions need fresh and complete figures.
func (c Condition) judge(now, before Figures) (Verdict, string) {
	holds, not, known := false, false, now.known()
	switch c.Kind {
	case Above:
		holds = now.Lower > c.Threshold || known && !c.Surely && now.Total > c.Threshold
	case Below:
		not = now.Lower >= c.Threshold
		holds = known && (now.Upper < c.Threshold || !c.Surely && now.Total < c.Threshold)
	case ByPercent:
		known = known && before.known()
		rise, fall := now.Lower > before.Upper && !c.less(now.Lower, before.Upper), now.Upper < before.Lower && !c.more(now.Upper, before.Lower)
		switch {
		case c.Threshold > 0:
			holds = before.known() && rise || known && !c.Surely && now.Total > before.Total && !c.less(now.Total, before.Total)
		default:
			not = before.known() && c.more(now.Lower, before.Upper)
			holds = known && (fall || !c.Surely && now.Total < before.Total && !c.more(now.Total, before.Total))
		}
		holds = holds && max(now.Lower, before.Lower) >= c.Least
	}
	switch {
	case holds:
		return Holds, ""
	case not || known:
		return HoldsNot, ""
	}
	reason := now.unknownReason()
	if reason == "" {
		reason = before.unknownReason()
	}
	return NobodyKnows, reason
}

// less and more compare hits with those of the previous window, changed by the threshold.
func (c Condition) less(now, before int64) bool { return c.compare(now, before) < 0 }
func (c Condition) more(now, before int64) bool { return c.compare(now, before) > 0 }

// whole is 100 %, in the unit of a threshold.
const whole = 100 * 100

func (c Condition) compare(now, before int64) int {
	nowHigh, nowLow := bits.Mul64(uint64(now), whole)
	thenHigh, thenLow := bits.Mul64(uint64(before), uint64(whole+c.Threshold))
	switch {
	case nowHigh < thenHigh || nowHigh == thenHigh && nowLow < thenLow:
		return -1
	case nowHigh == thenHigh && nowLow == thenLow:
		return 0
	}
	return 1
}
