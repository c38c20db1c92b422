package window

import (
	"fmt"
	"math"
	"time"
)

// Now is the end of a span that lasts until the moment of its answer.
const Now int64 = math.MaxInt64

// maxEndAhead is how far after now a span may end. The asker's clock may be a
// little ahead of Redis's, so such an end counts as now.
const maxEndAhead = time.Minute

// Span is the time that a question is about, in the form in which it is asked. It becomes a Range
// when it is answered, because now is what Redis's clock says then. Redis keys expire by
// that clock, so no other clock can tell which hashes still hold the range.
type Span struct {
	// Length, if it is not 0, is the time from the beginning to the end.
	Length time.Duration
	// From is the beginning, in Unix milliseconds, if Length is 0.
	From int64
	// To is the end, which is not included: Unix milliseconds, or Now.
	To int64
	// Calendar, if it is not nil, turns the end into the range, in place of Length and From.
	Calendar Calendar
}

// Calendar returns the range that a moment (Unix milliseconds) asks about, such as that since midnight. The range
// must end at the moment or before, and must not be empty.
type Calendar interface{ Range(now int64) Range }

// Last is the span of a rolling window: the given length up to now.
func Last(length time.Duration) Span { return Span{Length: length, To: Now} }

// Between is the span from one moment up to another one (Unix milliseconds, or Now).
func Between(from, to int64) Span { return Span{From: from, To: to} }

// At returns the range that the span covers if now is the given moment (Unix milliseconds). It returns
// an *AheadError if the span ends later, and an *EmptyError if the range would be empty.
func (s Span) At(now int64) (Range, error) {
	r := Range{From: s.From, To: s.To}
	switch {
	case s.To == Now:
		r.To = now
	case s.To-now > maxEndAhead.Milliseconds():
		return Range{}, &AheadError{To: s.To, Now: now}
	default:
		r.To = min(s.To, now)
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

// AheadError means that a question is about time that has not come yet.
type AheadError struct{ To, Now int64 } // Unix milliseconds

func (e *AheadError) Error() string {
	return fmt.Sprintf("%s is later than now, %s: allowed is a moment up to now", Moment(e.To), Moment(e.Now))
}

// EmptyError means that a question ends at its beginning, or before it.
type EmptyError struct{ Range }

func (e *EmptyError) Error() string {
	return fmt.Sprintf("%s is not before to, %s: allowed is an earlier moment", Moment(e.From), Moment(e.To))
}

// isMoment reports whether Unix milliseconds can be written as a time, in 1970 to 9999. Answers that tell a moment
// of Redis's could not be encoded otherwise.
func isMoment(milli int64) bool {
	const last = 253_402_300_799_999
	return 0 <= milli && milli <= last
}

// Moment formats a time for people.
func Moment(milli int64) string { return time.UnixMilli(milli).UTC().Format(time.RFC3339Nano) }
