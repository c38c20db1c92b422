package watch

import (
	"slices"
	"time"

	"tallyroll/internal/watch/history"
	"tallyroll/internal/window"
)

// Record is a change as the stream stores it. The last record of a rule's key is its state.
type Record struct {
	history.KeyState
	Since    time.Time       `json:"since"`              // when the state began
	Began    time.Time       `json:"began,omitzero"`     // since when the condition has held; zero: it does not, or is unknown
	FiredAt  time.Time       `json:"fired_at,omitzero"`  // when the rule last fired
	Open     bool            `json:"open,omitempty"`     // it has fired, and was not resolved
	Previous history.State   `json:"previous,omitempty"` // empty: this is the first
	Quiet    bool            `json:"quiet,omitempty"`    // no target is notified
	To       []string        `json:"to,omitempty"`       // targets of the notification
	Notified []string        `json:"notified,omitempty"` // targets notified of trouble, and not yet of its end
	Many     bool            `json:"many,omitempty"`     // the key is one of many of its rule, which come and go
	Gone     bool            `json:"gone,omitempty"`     // the file no longer has the rule or this key
	By       string          `json:"by,omitempty"`       // the process that evaluated
	Repeats  *history.Origin `json:"repeats,omitempty"`  // the change that this record stores again, for targets that were not notified of it
}

func (r *Record) isLive() bool { return r.State != "" && !r.Gone }

// isLasting reports whether the state is pending, firing or unknown.
func (r *Record) isLasting() bool { return r.isLive() && !r.State.IsIdle() }

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
	text, zone := result.Rule.window()
	out = Record{
		KeyState: history.KeyState{Rule: result.Rule.Name, Key: result.Key, Of: result.Rule.kindOfKey(),
			Limit: result.Rule.limitName(), Window: text, TZ: zone, Condition: result.Rule.Condition.String(),
			At: toTime(result.At), Reason: result.Reason},
		Since: toTime(result.At), FiredAt: r.FiredAt, Open: r.Open && !r.Gone, To: result.Rule.To, Notified: r.Notified,
		Many: result.Rule.hasManyKeys() && result.Key != "",
	}
	out.Total, out.Lower, out.Upper = result.bounds()
	if result.AsOf > 0 {
		asOf := toTime(result.AsOf)
		out.AsOf = &asOf
	}
	if r.Gone {
		r = Record{}
	}
	out.Previous = r.State
	switch result.Verdict {
	case Undecided:
		out.State = history.Unknown
	case DoesNotHold:
		out.State = history.OK
		if out.Open || r.State == history.Resolved {
			out.State, out.Open = history.Resolved, false
		}
	case Holds:
		out.Began = out.At
		if r.State == history.Pending || r.State == history.Firing {
			out.Began = r.Began
		}
		clockSetBack := r.State == history.Pending && r.Began.Sub(out.At) > clockTolerance
		if clockSetBack {
			out.Began = out.At
		}
		out.State = history.Pending
		if out.Open || out.At.Sub(out.Began) >= result.Rule.For {
			out.State = history.Firing
		}
		if out.State == history.Firing && !out.Open {
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
	if r.State.IsIdle() {
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
	out.State = history.OK
	if r.Open {
		out.State, out.Open = history.Resolved, false
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
