package consume

import (
	"context"
	"errors"
	"time"
)

// source is what a session needs of a stream. jetstream.go has the real one;
// the simulation has one that loses, repeats and forgets.
type source interface {
	// look asks what the stream is now, or errNoStream. One answer alone may be a
	// past: see confirmed.
	look(ctx context.Context) (look, error)
	// next is the first message that the stream holds from a sequence on, 0 where
	// there is none. In a cluster a server that lags may answer: a message that is
	// found is true, one that is missing may be yet to come there.
	next(ctx context.Context, from uint64) (seq uint64, stored int64, err error)
	// open prepares to read from a sequence on.
	open(ctx context.Context, from uint64) (reading, error)
	// reject stores rejects, and says how many of them certainly are.
	reject(ctx context.Context, rejects []rejectedHit) (stored int, err error)
}

// reading is one delivery of a stream's messages in order.
type reading interface {
	// pending is how many messages there were to read when it was opened.
	pending() uint64
	// start delivers messages, one after the other, on a goroutine of its own. It
	// calls lost at most once, when deliveries can no longer be trusted.
	start(deliver func(delivery), lost func(error)) error
	// stop begins no further delivery.
	stop()
	// release frees what the server keeps for it.
	release() error
}

// delivery is a message as it is delivered.
type delivery struct {
	subject string
	data    []byte
	marker  bool   // a note of the server's, not a message of a producer's
	seq     uint64 // in the stream
	nth     uint64 // of this reading, from 1
	stored  int64  // Unix nanoseconds
}

// streamState is what a stream says of itself.
type streamState struct {
	subjects    []string
	created     int64         // Unix nanoseconds: its incarnation
	first, last uint64        // sequences held; first is last+1 where it is empty
	firstStored int64         // of the first message, Unix nanoseconds; seen where it is empty
	lastStored  int64         // of the last message, held or not, Unix nanoseconds
	at          int64         // Unix milliseconds: what was stored before this moment is in last
	mirror      bool          // of another stream: its messages keep the times at which that one stored them
	seen        int64         // Unix milliseconds: what was stored at this moment or after it is not
	ahead       time.Duration // of this process's clock the server's is; see window.ClockAhead
}

// since is a moment in Unix milliseconds before which nothing in the stream was
// stored; 0 for a mirror, of which nobody knows it.
func (s streamState) since() int64 {
	switch {
	case s.mirror:
		return 0
	case s.first <= s.last && s.firstStored > 0: // a mirror that was promoted has messages older than itself
		return min(s.created, s.firstStored) / 1e6
	}
	return s.created / 1e6
}

// errNoStream says that the stream does not exist (any more).
var errNoStream = errors.New("the stream does not exist")
