package watch

import (
	"slices"
	"time"

	"tallyroll/internal/platform/human"
	"tallyroll/internal/window"
)

type State string

// The states. The package documentation draws the transitions.
const (
	OK       State = "ok"       // the condition does not hold
	Pending  State = "pending"  // it holds, and the rule's for is not over
	Firing   State = "firing"   // it has held that long
	Resolved State = "resolved" // it holds no more, and had fired
	Unknown  State = "unknown"  // the figures cannot decide
)

var States = []State{OK, Pending, Firing, Resolved, Unknown}

// isIdle reports whether a target that was not notified of trouble needs no notification of this state.
func (s State) isIdle() bool { return s == OK || s == Resolved || s == "" }

// KeyState is the state of a rule's key with its numbers, as targets receive it.
type KeyState struct {
	Rule   string       `json:"rule" doc:"The rule." example:"errors"`
	Key    string       `json:"key" doc:"The counter, prefix or group that the state is about. Empty: the rule as a whole, if it has a state for each of many keys." example:"http.5xx"`
	State  State        `json:"state" doc:"The state from now on." enum:"ok,pending,firing,resolved,unknown" example:"firing"`
	Total  window.Bound `json:"total" nullable:"true" doc:"The hits in the window, as /v1/total gives them; null if they could not be read." example:"131"`
	Lower  window.Bound `json:"lower" nullable:"true" doc:"There were at least this many; null if total is." example:"129"`
	Upper  window.Bound `json:"upper" nullable:"true" doc:"There were at most this many; null if it is unknown." example:"133"`
	Window string       `json:"window" doc:"The rule's window." example:"5m"`
	// Of and Condition are missing in records of earlier versions.
	Of        string     `json:"of,omitempty" enum:"prefix,group" doc:"What key is, if it is not a counter: the prefix of a sum, or a group of counters." example:"prefix"`
	Condition string     `json:"condition,omitempty" doc:"What must hold for the rule to fire: above or below a number of hits, or change by a percentage; and surely if it must hold for every value within the bounds." example:"above 100"`
	AsOf      *time.Time `json:"as_of" doc:"Every hit stored before this moment was in the numbers; null if they could not be read." example:"2026-11-21T10:00:00.2Z"`
	At        time.Time  `json:"at" doc:"When the rule was evaluated, by Redis's clock." example:"2026-11-21T10:00:00.4Z"`
	Reason    string     `json:"reason,omitempty" doc:"Why the state is unknown, or why it ended if not because of the numbers." example:"nobody has counted lately"`
}

// Record is a change as the stream stores it. The last record of a rule's key is its state.
type Record struct {
	KeyState
	Since    time.Time `json:"since"`              // when the state began
	Began    time.Time `json:"began,omitzero"`     // since when the condition has held; zero: it does not, or is unknown
	FiredAt  time.Time `json:"fired_at,omitzero"`  // when the rule last fired
	Open     bool      `json:"open,omitempty"`     // it has fired, and was not resolved
	Previous State     `json:"previous,omitempty"` // empty: this is the first
	Quiet    bool      `json:"quiet,omitempty"`    // no target is notified
	To       []string  `json:"to,omitempty"`       // targets of the notification
	Notified []string  `json:"notified,omitempty"` // targets notified of trouble, and not yet of its end
	Many     bool      `json:"many,omitempty"`     // the key is one of many of its rule, which come and go
	Gone     bool      `json:"gone,omitempty"`     // the file no longer has the rule or this key
	By       string    `json:"by,omitempty"`       // the process that evaluated
	Repeats  *origin   `json:"repeats,omitempty"`  // the change that this record stores again, for targets that were not notified of it
}

func (r *Record) isLive() bool { return r.State != "" && !r.Gone }

// isLasting reports whether the state is pending, firing or unknown.
func (r *Record) isLasting() bool { return r.isLive() && !r.State.isIdle() }

// Result is the result of one evaluation of a rule's key.
type Result struct {
	Rule    *Rule
	Key     string
	Figures *Figures // nil: not read, or the rule's own state, which has none
	Verdict Verdict
	Reason  string // why it is unknown
	AsOf    int64  // Unix milliseconds, by the clock of NATS; 0: unknown
	At      int64  // Unix milliseconds, by that of Redis
}

func (s Result) bounds() (total, lower, upper window.Bound) {
	if s.Figures == nil {
		return unknownBound, unknownBound, unknownBound
	}
	return window.Bound(s.Figures.Total), window.Bound(s.Figures.Lower), s.Figures.upperBound()
}

// clockTolerance is how far Redis's clock must go back before a rule's for restarts.
const clockTolerance = 5 * time.Second

// advance returns the record after an evaluation, and whether it changed. It is the complete state machine.
func (r Record) advance(result Result) (out Record, changed bool) {
	out = Record{
		KeyState: KeyState{Rule: result.Rule.Name, Key: result.Key, Of: result.Rule.kindOfKey(),
			Window: human.FormatDuration(result.Rule.Window), Condition: result.Rule.Condition.String(),
			At: toTime(result.At), Reason: result.Reason},
		Since: toTime(result.At), FiredAt: r.FiredAt, Open: r.Open && !r.Gone, To: result.Rule.To, Notified: r.Notified,
		Previous: r.State,
		Many:     result.Rule.hasManyKeys() && result.Key != "",
	}
	out.Total, out.Lower, out.Upper = result.bounds()
	if result.AsOf > 0 {
		asOf := toTime(result.AsOf)
		out.AsOf = &asOf
	}
	if r.Gone {
		r = Record{}
	}
	switch result.Verdict {
	case Undecided:
		out.State = Unknown
	case DoesNotHold:
		out.State = OK
		if out.Open || r.State == Resolved {
			out.State, out.Open = Resolved, false
		}
	case Holds:
		out.Began = out.At
		if r.State == Pending || r.State == Firing {
			out.Began = r.Began
		}
		clockSetBack := r.State == Pending && r.Began.Sub(out.At) > clockTolerance
		if clockSetBack {
			out.Began = out.At
		}
		out.State = Pending
		if out.Open || out.At.Sub(out.Began) >= result.Rule.For {
			out.State = Firing
		}
		if out.State == Firing && !out.Open {
			out.Open, out.FiredAt = true, out.At
		}
		if clockSetBack && out.State == r.State {
			out.Since, out.Quiet = r.Since, true
			return out, true
		}
	}
	if out.State == r.State || r.State == "" && out.Many && result.Verdict != Holds {
		return r, false // a key of many has a state once the condition has held
	}
	out.setRecipients(r, result.Reason)
	return out, true
}

// setRecipients sets the targets of the record. The end of trouble goes to exactly the targets that were
// notified of it, whatever the file lists now. A first state that is unknown because counting is young
// notifies no target.
func (r *Record) setRecipients(previous Record, reason string) {
	if r.State.isIdle() {
		r.To, r.Notified = r.Notified, nil
		r.Quiet = len(r.To) == 0
		return
	}
	r.Quiet = previous.State == "" && (reason == reasonYoung || reason == reasonNoLayout)
	if !r.Quiet {
		r.Notified = mergeNames(r.Notified, r.To)
	}
}

// finish returns the last record of a state whose rule or key is gone.
func (r Record) finish(at int64, reason string) Record {
	out := r
	out.At, out.Since, out.Previous, out.Reason, out.Gone, out.Began = toTime(at), toTime(at), r.State, reason, true,
		time.Time{}
	out.State = OK
	if r.Open {
		out.State, out.Open = Resolved, false
	}
	out.setRecipients(r, reason)
	return out
}

func mergeNames(a, b []string) []string {
	out := slices.Clone(a)
	for _, name := range b {
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

func toTime(milli int64) time.Time { return time.UnixMilli(milli).UTC() }
