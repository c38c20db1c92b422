package window

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"
)

// Question asks for the hits of one counter in a span.
type Question struct {
	Counter string
	Span    Span
}

// Answer is an estimate, and the facts that it rests on.
type Answer struct {
	Estimate       // of the hits applied: see Range.Outruns
	Range    Range // what the span was when it was answered
	Tier     Tier
	Complete bool // no hit of the range is known to be missing, up to AsOf
	// CountingSince is when counting of the streams began, in Unix milliseconds, or 0 if that is
	// not known. If an answer is incomplete although it begins later, hits were lost.
	CountingSince int64
}

// usualLag is how far a range that ends now usually reaches beyond as_of at most, while somebody counts. Workers move
// as_of every second, of idle streams too, and that takes up to a second. The streams of a worker that was killed are
// taken within five.
const usualLag = 5 * time.Second

// Outruns reports whether the range reaches further beyond as_of (Unix milliseconds) than it does while somebody counts.
// The estimate of its hits then holds for those applied, and nobody knows how many more were stored: it has no upper
// bound, and is not complete. Whoever shows an estimate asks this first.
//
// The end of a range is by the clock of Redis, and as_of by that of NATS. The rule is the same if all streams have ended,
// although none is left that hits could be stored in. as_of then stands at the end of the last one, and nothing in
// Redis tells whether a worker is watching for new ones.
func (r Range) Outruns(asOf int64) bool { return r.To-asOf > usualLag.Milliseconds() }

// Bound is the most hits that there can have been, or Unbounded, which is null in JSON.
type Bound int64

// Unbounded is where sums stop, too: they never wrap round.
const Unbounded Bound = math.MaxInt64

// AtMost is the bound on the hits of the range, if there were at most n among those that were applied at asOf. Whatever
// shows a bound has it from here.
func (r Range) AtMost(n, asOf int64) Bound {
	if r.Outruns(asOf) {
		return Unbounded
	}
	return Bound(n)
}

// Float is the number as Prometheus takes it.
func (b Bound) Float() float64 {
	if b == Unbounded {
		return math.Inf(1)
	}
	return float64(b)
}

func (b Bound) String() string {
	if b == Unbounded {
		return "null"
	}
	return strconv.FormatInt(int64(b), 10)
}

// MarshalJSON writes the number, or null. A field with nullable:"true" describes that.
func (b Bound) MarshalJSON() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalJSON reads what MarshalJSON writes.
func (b *Bound) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		*b = Unbounded
		return nil
	}
	return json.Unmarshal(data, (*int64)(b))
}

// Answers are the answers to several questions at one moment.
type Answers struct {
	// Now is that moment by Redis's clock, in Unix milliseconds. Spans that last until now
	// end at it.
	Now int64
	// AsOf is a moment in Unix milliseconds: every hit stored before it is in
	// the answers. It is 0 if some stream has not been counted at all yet.
	AsOf    int64
	Answers []Answer
}

// QuestionError means that a question cannot be answered: either whatever Redis holds, or
// (a *ForeignError) because of a key that no other question reads.
type QuestionError struct {
	Index int // of the question
	Err   error
}

func (e *QuestionError) Error() string { return e.Err.Error() }
func (e *QuestionError) Unwrap() error { return e.Err }

// TooMuchError means that a call would cost more than it may.
type TooMuchError struct {
	What       string // cells or points
	Count, Max int64
}

func (e *TooMuchError) Error() string {
	return fmt.Sprintf("%d %s: at most %d are allowed", e.Count, e.What, e.Max)
}
