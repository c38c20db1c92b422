package hit

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
)

// MaxN is the largest n of one hit. An int64 holds the sum of 8 million of these.
const MaxN = 1 << 40

// NoTime is the time of a producer's hit that counts at the time it is stored. Decoder gives each hit a time.
const NoTime = math.MinInt64

// Hit is something that happened N times. Counter and Unique may point into reused memory: copy to keep them.
type Hit struct {
	Counter []byte
	N       int64
	At      int64  // Unix milliseconds, or NoTime
	Hash    uint64 // of the counter, as Limits.Place returns it; 0 in a producer's hits
	Unique  []byte // the value that is counted once, such as a visitor; nil without one. Never log it.

	Excluded bool // from the sum of all hits
}

// MaxUnique is the longest unique value, in bytes.
const MaxUnique = 512

// CheckUnique returns an error unless a value has 1 to MaxUnique bytes of valid UTF-8. The error does not
// contain the value.
func CheckUnique(value []byte) error {
	switch {
	case len(value) == 0 || len(value) > MaxUnique:
		return fmt.Errorf("must have 1 to %d bytes; got %d", MaxUnique, len(value))
	case !utf8.Valid(value):
		return errors.New("not valid UTF-8")
	}
	return nil
}

// MaxName is the longest name of a counter, in bytes.
const MaxName = 512

var (
	ErrNameLength  = errors.New("the counter's name")
	ErrNameUTF8    = errors.New("the counter's name is not valid UTF-8")
	ErrNameControl = errors.New("the counter's name has a control character")
)

// CheckName returns an error unless a name has 1 to MaxName bytes of valid UTF-8 without control characters
// (C0, delete and C1). The error wraps ErrNameLength, ErrNameUTF8 or ErrNameControl.
func CheckName(name []byte) error {
	if len(name) == 0 || len(name) > MaxName {
		return fmt.Errorf("%w has %d bytes; 1 to %d are allowed", ErrNameLength, len(name), MaxName)
	}
	plain := true
	for _, c := range name {
		plain = plain && c >= 0x20 && c < 0x7f
	}
	switch {
	case plain:
		return nil
	case !utf8.Valid(name):
		return ErrNameUTF8
	case bytes.ContainsFunc(name, unicode.IsControl):
		return ErrNameControl
	}
	return nil
}

// Shorten returns a name of at most MaxName bytes unchanged. Of a longer one it returns the beginning, an
// ellipsis and the xxhash64 of the whole, so that two long names stay two counters.
func Shorten(name []byte) []byte {
	const ellipsis = "…"
	if len(name) <= MaxName {
		return name
	}
	cut := MaxName - len(ellipsis) - 16
	for cut > 0 && !utf8.RuneStart(name[cut]) {
		cut--
	}
	return fmt.Appendf(nil, "%s%s%016x", name[:cut], ellipsis, xxhash.Sum64(name))
}

// The years 1 to 9999, which RFC 3339 can write, in Unix milliseconds.
const MinTime, MaxTime = -62135596800000, 253402300799999

// ErrTimeRange means that a time is before MinTime or after MaxTime.
var ErrTimeRange = errors.New("the time is outside the years 1 to 9999")

// CheckTime returns ErrTimeRange if no hit can have this time, in Unix milliseconds.
func CheckTime(at int64) error {
	if at < MinTime || at > MaxTime {
		return ErrTimeRange
	}
	return nil
}

// Moment formats Unix milliseconds as an RFC 3339 time.
func Moment(at int64) string { return time.UnixMilli(at).UTC().Format("2006-01-02T15:04:05.999Z07:00") }

// Reason is why a hit is refused, in one word: the header Tallyroll-Reason.
type Reason string

const (
	BadJSON   Reason = "bad_json"   // not an object
	BadField  Reason = "bad_field"  // a field is a mistake for another, or all is not true or false
	BadKey    Reason = "bad_key"    // no counter can have the name
	BadCount  Reason = "bad_count"  // n is not an integer from 1 to MaxN
	BadTime   Reason = "bad_time"   // ts is not a time, or outside the years 1 to 9999
	BadUnique Reason = "bad_unique" // unique is not a string that CheckUnique accepts
	Future    Reason = "future"     // ts is later than the time stored by more than Limits.MaxAhead
	TooLate   Reason = "too_late"   // no tier still held ts at the time stored
	TooLarge  Reason = "too_large"  // the message carries more than Limits.MaxHits
	NoRule    Reason = "no_rule"    // a CloudEvent for which internal/rules has no rule
)

// Reasons lists all reasons.
var Reasons = []Reason{BadJSON, BadField, BadKey, BadCount, BadTime, BadUnique, Future, TooLate, TooLarge, NoRule}

// Refusal is the error for a hit that is refused.
type Refusal struct {
	Reason Reason
	Detail string // what is wrong and what is allowed, human-readable
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

// Kind is what was rejected: the header Tallyroll-Kind.
type Kind string

const (
	OfHit     Kind = ""        // a hit, or a message with hits
	OfEvent   Kind = "event"   // an event that rules read, or a message with events, as JSON
	OfMessage Kind = "message" // a message that is one event: its headers belong to it
	// OfIncrement is an increment of one of NATS's own counters: its body is the running total.
	OfIncrement Kind = "increment"
)
