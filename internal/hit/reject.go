package hit

// Reason is why a hit is refused, in one word: the header Tallyroll-Reason.
type Reason string

const (
	BadJSON  Reason = "bad_json"  // not an object, or it has a field that was meant to be another
	BadKey   Reason = "bad_key"   // no counter can have the name
	BadCount Reason = "bad_count" // n is not an integer from 1 to MaxN
	BadTime  Reason = "bad_time"  // ts is not a time, or outside the years 1 to 9999
	Future   Reason = "future"    // ts is later than the time stored by more than Limits.MaxAhead
	TooLate  Reason = "too_late"  // no tier held ts any more at the time stored
	TooLarge Reason = "too_large" // the message carries more than Limits.MaxHits
	NoRule   Reason = "no_rule"   // a CloudEvent, and no rule of internal/rules says what it counts
)

// Reasons lists all reasons.
var Reasons = []Reason{BadJSON, BadKey, BadCount, BadTime, Future, TooLate, TooLarge, NoRule}

// Refusal is the error for a hit that is refused.
type Refusal struct {
	Reason Reason
	Detail string // what is wrong and what is allowed, for people
}

func (r *Refusal) Error() string { return r.Detail }

// Reject is a part of a message that could not be counted. Its body is a part of the message's body.
type Reject struct {
	Reason Reason
	Detail string
	Item   int // index in the message
	Body   []byte
	Kind   Kind
}

// Kind is what a reject is of: the header Tallyroll-Kind.
type Kind string

const (
	OfHit     Kind = ""        // a hit, or a message with hits
	OfEvent   Kind = "event"   // an event that rules read, or a message with events, as JSON
	OfMessage Kind = "message" // a message that is one event: its headers belong to it
)
