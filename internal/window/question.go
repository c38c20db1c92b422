package window

import "fmt"

// Question asks for the hits of one counter in a span.
type Question struct {
	Counter string
	Span    Span
}

// Answer is an estimate, and the facts that it rests on.
type Answer struct {
	Estimate
	Range    Range // what the span was when it was answered
	Tier     Tier
	Complete bool // no hit of the range is known to be missing
	// CountingSince is when counting of the streams began, in Unix milliseconds, or 0 if that is
	// not known. If an answer is incomplete although it begins later, hits were lost.
	CountingSince int64
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

// QuestionError says that a question cannot be answered: either whatever Redis holds, or
// (a *ForeignError) because of a key that no other question reads.
type QuestionError struct {
	Index int // of the question
	Err   error
}

func (e *QuestionError) Error() string { return e.Err.Error() }
func (e *QuestionError) Unwrap() error { return e.Err }

// TooMuchError says that a call would cost more than it may.
type TooMuchError struct {
	What       string // cells or points
	Count, Max int64
}

func (e *TooMuchError) Error() string {
	return fmt.Sprintf("%d %s: at most %d are allowed", e.Count, e.What, e.Max)
}
