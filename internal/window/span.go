package window

import (
	"fmt"
	"math"
	"time"
)

// Span is a question's time as it was asked. It becomes a Range when it is answered, by Redis's clock: keys
// expire by that clock, so no other can show which hashes still hold the range.
type Span struct {
	// Length, if not 0, is the time from the beginning to the end.
	Length time.Duration
	// From is the beginning if Length is 0: Unix milliseconds; if negative, milliseconds before now.
	From int64
	// To is the end, which is not included: as From, or Now.
	To int64
	// Calendar, if not nil, turns the end into the range, in place of Length and From.
	Calendar Calendar
}

// Calendar returns the range that a moment (Unix milliseconds) asks about, such as that since midnight. It
// must not be empty, and end by the moment.
type Calendar interface{ Range(now int64) Range }

// Now is the end of a span that lasts until the moment of its answer.
const Now int64 = math.MaxInt64

// MaxEndAhead is how far after now a span may end, and then ends now: the caller's clock may be ahead.
const MaxEndAhead = time.Minute

// Last returns the span of a rolling window: the given length up to now.
func Last(length time.Duration) Span { return Span{Length: length, To: Now} }

// Between returns the span from one moment up to another one (Unix milliseconds, or Now).
func Between(from, to int64) Span { return Span{From: from, To: to} }

// At returns the range at now (Unix milliseconds), an *AheadError for a later end, or an *EmptyError.
func (s Span) At(now int64) (Range, error) {
	r := Range{From: Absolute(s.From, now), To: Absolute(s.To, now)}
	switch {
	case s.To == Now:
		r.To = now
	case s.To-now > MaxEndAhead.Milliseconds():
		return Range{}, &AheadError{To: s.To, Now: now}
	default:
		r.To = min(r.To, now)
	}
	switch {
	case s.Calendar != nil:
		r = s.Calendar.Range(r.To)
	case s.Length != 0:
		r.From = r.To - s.Length.Milliseconds()
	}
	if r.From >= r.To {
		return Range{}, &EmptyError{r}
	}
	return r, nil
}

// Absolute returns a moment in Unix milliseconds. If it is negative, it is relative to now.
func Absolute(moment, now int64) int64 {
	if moment < 0 {
		return now + moment
	}
	return moment
}

// AheadError means that a question ends in the future.
type AheadError struct{ To, Now int64 } // Unix milliseconds

func (e *AheadError) Error() string {
	return fmt.Sprintf("%s is later than now, %s: must be a moment up to now", Moment(e.To), Moment(e.Now))
}

// EmptyError means that a question ends at its beginning, or before it.
type EmptyError struct{ Range }

func (e *EmptyError) Error() string {
	return fmt.Sprintf("%s is not before to, %s: must be an earlier moment", Moment(e.From), Moment(e.To))
}

// IsMoment reports whether Unix milliseconds lie in 1970 to 9999. Others cannot be encoded in answers.
func IsMoment(milli int64) bool {
	const last = 253_402_300_799_999
	return 0 <= milli && milli <= last
}

// Moment formats a time, human-readable.
func Moment(milli int64) string { return time.UnixMilli(milli).UTC().Format(time.RFC3339Nano) }
