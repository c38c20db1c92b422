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
	Counter string // or AllHits
	Span    Span
	// Part means that the counter is a part of a sum, whose overflow counters its caller asks for.
	Part bool
}

// Answer is an estimate, and the facts that it rests on.
type Answer struct {
	Estimate       // of the hits applied: see Range.Outruns
	Range    Range // what the span was when it was answered
	Tier     Tier
	Complete bool // no hit of the range is known to be missing, up to AsOf
	// CountingSince is when counting began (Unix milliseconds; 0 if unknown). If an answer is incomplete
	// although it begins later, hits were lost.
	CountingSince int64
	// Overflow is a counter that may have some of the hits, which only Upper includes; mostly empty. See
	// NameBound.
	Overflow string
}

// usualLag is how far a range that ends now reaches beyond as_of while workers count. as_of moves every
// second, and that takes up to a second. The streams of a killed worker are taken over within five.
const usualLag = 5 * time.Second

// Outruns reports whether the range reaches further beyond as_of (Unix milliseconds) than while workers
// count. How many hits were stored but not applied is then unknown, so an estimate has no upper bound, and is
// not complete. Callers must check this before they show one.
//
// The end of a range is by the clock of Redis, as_of by that of NATS. The rule is the same if all streams
// have ended: as_of then stays, and Redis does not show whether a worker is watching for new ones.
func (r Range) Outruns(asOf int64) bool { return r.To-asOf > usualLag.Milliseconds() }

// Bound is the most hits that there can have been, or Unbounded, which is null in JSON.
type Bound int64

// Unbounded is also where sums saturate.
const Unbounded Bound = math.MaxInt64

// AtMost returns the bound on the range's hits, if at most n were applied at asOf. Show no other bounds.
func (r Range) AtMost(n, asOf int64) Bound {
	if r.Outruns(asOf) {
		return Unbounded
	}
	return Bound(n)
}

// Plus adds n, and saturates.
func (b Bound) Plus(n int64) Bound { return Bound(AddCounts(int64(b), n)) }

// Float returns the number for Prometheus; Unbounded is +Inf.
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
	// Now is that moment by Redis's clock, in Unix milliseconds. Spans that last until now end at it.
	Now int64
	// AsOf is a moment (Unix milliseconds): every hit stored before it is in the answers. 0 if some stream
	// has not been counted yet.
	AsOf    int64
	Answers []Answer
}

// QuestionError means that a question cannot be answered, either whatever Redis holds, or (a *ForeignError)
// because of a key that no other question reads.
type QuestionError struct {
	Index int // of the question
	Err   error
}

func (e *QuestionError) Error() string { return e.Err.Error() }

func (e *QuestionError) Unwrap() error { return e.Err }

// TooMuchError means that a call would cost more than allowed.
type TooMuchError struct {
	What       string // cells or points
	Count, Max int64
}

func (e *TooMuchError) Error() string {
	return fmt.Sprintf("%d %s: at most %d are allowed", e.Count, e.What, e.Max)
}
