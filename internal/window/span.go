package window

import (
	"fmt"
	"math"
	"time"
)

// Now is the end of a span that lasts until the moment of its answer.
const Now int64 = math.MaxInt64

// maxEndAhead is how far a span may end after now: the asker's clock may be a
// little ahead of Redis's, and such an end is taken to be now.
const maxEndAhead = time.Minute

// Span is the time that a question is about, as it is asked. It becomes a Range
// when it is answered, because now is what Redis's clock says then: a Redis key
// expires by that clock, so no other one can tell which hashes still hold the range.
type Span struct {
	// Length, if it is not 0, puts the beginning so long before the end.
	Length time.Duration
	// From is the beginning, in Unix milliseconds, if Length is 0.
	From int64
	// To is the end, which is not included: Unix milliseconds, or Now.
	To int64
}

// Last is the span of a rolling window: so long until now.
func Last(length time.Duration) Span { return Span{Length: length, To: Now} }

// Between is the span from one moment up to another one (Unix milliseconds, or Now).
func Between(from, to int64) Span { return Span{From: from, To: to} }

// At is the range that the span is at a moment (Unix milliseconds). It returns an
// *AheadError if the span ends later, and an *EmptyError if nothing is left of it.
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
	if s.Length != 0 {
		r.From = r.To - s.Length.Milliseconds()
	}
	if r.From >= r.To {
		return Range{}, &EmptyError{r}
	}
	return r, nil
}

// AheadError is a question about time that has not come yet.
type AheadError struct{ To, Now int64 } // Unix milliseconds

func (e *AheadError) Error() string {
	return fmt.Sprintf("%s is later than now, %s: allowed is a moment up to now", moment(e.To), moment(e.Now))
}

// EmptyError is a question that ends where it begins, or before.
type EmptyError struct{ Range }

func (e *EmptyError) Error() string {
	return fmt.Sprintf("%s is not before to, %s: allowed is an earlier moment", moment(e.From), moment(e.To))
}

// moment is a time for people.
func moment(milli int64) string { return time.UnixMilli(milli).UTC().Format(time.RFC3339Nano) }
