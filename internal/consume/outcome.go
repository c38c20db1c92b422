package consume

import (
	"errors"
	"time"

	"tallyroll/internal/window"
)

// phase is how far a session has got. The phases follow one another in this order, and any may be the last.
type phase int32

const (
	resuming phase = iota // reads the cursors, decides where each shard goes on, and writes what that changes
	opening               // asks for messages, and makes sure that the stream is still the one that was judged
	counting              // reads, coalesces and commits
	ending                // has stopped reading: commits what is in memory and frees the consumer
)

// verdict is the way in which a session ended.
type verdict int

const (
	drained verdict = iota // it was told to stop; the log says what it could not commit, if anything
	gone                   // the stream does not exist any more
	fenced                 // another worker has moved a cursor
	failed                 // anything else: the unexpected ends a session
)

func (v verdict) String() string { return [...]string{"drained", "gone", "fenced", "failed"}[v] }

// Why a session fails, besides what Redis and NATS say.
var (
	errGap        = errors.New("messages were lost on the way")
	errStalled    = errors.New("the stream holds messages that are not delivered")
	errReconnect  = errors.New("NATS was reconnected")
	errIncarnated = errors.New("the stream was made anew")
	errRolledBack = errors.New("the stream was rolled back")
	errEdited     = errors.New("the stream's subjects were edited")
	errRuled      = errors.New("the rules were changed")
)

// outcome is how a session ended, from which the worker decides what comes next.
type outcome struct {
	verdict verdict
	why     error // what ended it first; the end of the context if it was told to stop
	phase   phase // the last one that it began
	// unread says that the stream is known to have held messages that are not applied
	// on every shard.
	unread bool
	idle   bool // it was given no message
}

// newOutcome judges what ended a session; told is whether the session had been told to stop. If a
// stream is gone, the fleet lets go of it, too, perhaps before the last commit has ended. So a
// stream that is gone takes precedence.
func newOutcome(why error, told bool) outcome {
	switch {
	case errors.Is(why, errNoStream):
		return outcome{verdict: gone, why: why}
	case told:
		return outcome{verdict: drained, why: why}
	case errors.Is(why, window.ErrFenced):
		return outcome{verdict: fenced, why: why}
	}
	return outcome{verdict: failed, why: why}
}

const (
	// maxReopen bounds the pause before the worker takes a stream again whose sessions keep failing.
	maxReopen = 2 * time.Second
	// foreignRetry is the pause before the worker takes a stream again if only a person can mend it: another program
	// has written to its cursor, rules are lost, or the stream is not the one that was counted.
	foreignRetry = 10 * time.Second
	// stalledAfter is how many looks in a row may find the reader idle although the stream holds
	// messages that it has not been given. If a session stalls without a message, the next one may be
	// idle for twice as many looks, up to maxStalledAfter.
	stalledAfter, maxStalledAfter = 3, 48
)

// retry says how the next session of a stream begins.
type retry struct {
	pause   time.Duration // before it
	maxIdle int           // see setup
}

func firstTry() retry { return retry{maxIdle: stalledAfter} }

// after returns the try that follows one with outcome o that lasted for the given time.
func (r retry) after(o outcome, lasted time.Duration) retry {
	next := retry{maxIdle: stalledAfter}
	if errors.Is(o.why, errStalled) && o.idle {
		next.maxIdle = min(2*r.maxIdle, maxStalledAfter)
	}
	switch {
	case window.IsForeign(o.why), errors.Is(o.why, errRulesLost), errors.Is(o.why, errUnidentified), errors.Is(o.why, errRetention):
		next.pause = foreignRetry
	case o.phase == resuming || o.verdict == fenced: // it never got going, or someone else has the stream
		next.pause = min(max(2*r.pause, 100*time.Millisecond), maxReopen)
	case lasted > maxReopen:
		next.pause = 0
	default:
		next.pause = min(r.pause+50*time.Millisecond, maxReopen)
	}
	return next
}
