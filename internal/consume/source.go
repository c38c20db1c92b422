package consume

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/rejects"
)

// source is what a session needs from a stream. jetstream.go has the real one. The
// simulation in the tests has one that loses, repeats and forgets messages.
type source interface {
	// look asks for the stream's present state. It returns errNoStream if there is no such stream. A
	// single answer may be out of date: see confirmed.
	look(ctx context.Context) (streamCheck, error)
	// next returns the first message that the stream holds from a sequence on, or 0 if there
	// is none. In a cluster, a server that lags may answer: a message that it has is
	// real, but a message that it lacks may still arrive there.
	next(ctx context.Context, from uint64) (seq uint64, stored int64, err error)
	// open prepares to read from a sequence on.
	open(ctx context.Context, from uint64) (feed, error)
	// reject stores rejects, and returns how many of them are certainly stored.
	reject(ctx context.Context, refused []rejects.Reject) (stored int, err error)
}

// feed is the messages of a stream, in order, from one of them on.
type feed interface {
	// pending is how many messages there were to read when it was opened.
	pending() uint64
	// start delivers messages, one after the other, on a goroutine of its own. It
	// calls lost at most once, when deliveries can no longer be trusted.
	start(deliver func(delivery), lost func(error)) error
	// stop makes the feed begin no further delivery.
	stop()
	// release frees what the server keeps for the feed.
	release() error
}

// delivery is a message as it is delivered.
type delivery struct {
	subject string
	header  nats.Header
	data    []byte
	skip    string // why it counts nothing here, as the metric names it; empty: it counts
	seq     uint64 // in the stream
	nth     uint64 // of this feed, from 1
	stored  int64  // Unix nanoseconds
}

// streamState is what a stream says about itself.
type streamState struct {
	subjects    []string
	created     int64  // Unix nanoseconds: its incarnation
	first, last uint64 // sequences held; first is last+1 if the stream is empty
	firstStored int64  // of the first message, Unix nanoseconds; seen if the stream is empty
	lastStored  int64  // of the last message, held or not, Unix nanoseconds
	at          int64  // Unix milliseconds: no message after last was stored before this moment
	mirror      bool   // of another stream: its messages keep the times at which that one stored them
	seen        int64  // Unix milliseconds: every message stored from this moment on is after last
	clock       int64  // Unix milliseconds: by the clock that stores messages it was earlier than this; 0 if that is not known
	retention   jetstream.RetentionPolicy
	ahead       time.Duration // how far the server's clock is ahead of this process's; see window.ClockAhead
}

// since returns a moment in Unix milliseconds before which nothing in the stream was
// stored. It is 0 for a mirror, because nobody knows that moment.
func (s streamState) since() int64 {
	switch {
	case s.mirror:
		return 0
	case s.first <= s.last && s.firstStored > 0: // a mirror that was promoted has messages older than itself
		return min(s.created, s.firstStored) / 1e6
	}
	return s.created / 1e6
}

// endStored returns when the last message was stored. It is 0 if the stream is empty, because a
// purge replaces that time with its own.
func (s streamState) endStored() int64 {
	if s.first > s.last {
		return 0
	}
	return s.lastStored
}

// errNoStream means that the stream does not exist (any more).
var errNoStream = errors.New("the stream does not exist")

// The reply subject of a delivered message says where the message is in the stream. The code
// below reads it as the client library's Metadata does, but without making values for each
// message, which took 8 % of a worker's time.
//
//	$JS.ACK.<stream>.<consumer>.<deliveries>.<stream sequence>.<consumer sequence>.<time>.<pending>
//	$JS.ACK.<domain>.<account>.<stream>.<consumer>.<deliveries>.<stream sequence>.<consumer sequence>.<time>.<pending>[.…]
const (
	replyPrefix = "$JS.ACK."
	shortReply  = 7 // tokens after the prefix
	longReply   = 9 // tokens after the prefix, at least
)

// parseReply reads a reply subject. It reports false if the text is not one.
func parseReply(reply string) (d delivery, ok bool) {
	rest, ok := strings.CutPrefix(reply, replyPrefix)
	if !ok {
		return d, false
	}
	skip := 3 // stream, consumer, deliveries
	switch tokens := strings.Count(rest, ".") + 1; {
	case tokens >= longReply:
		skip = 5
	case tokens != shortReply:
		return d, false
	}
	for range skip {
		_, rest, _ = strings.Cut(rest, ".")
	}
	for _, to := range []*uint64{&d.seq, &d.nth} {
		*to, rest, ok = cutNumber(rest)
		if !ok {
			return d, false
		}
	}
	stored, _, ok := cutNumber(rest)
	d.stored = int64(stored)
	return d, ok
}

// cutNumber reads a token of digits and the dot after it.
func cutNumber(text string) (n uint64, rest string, ok bool) {
	token, rest, _ := strings.Cut(text, ".")
	if len(token) == 0 || len(token) > 19 { // 19 digits fit
		return 0, "", false
	}
	for i := range len(token) {
		digit := token[i] - '0'
		if digit > 9 {
			return 0, "", false
		}
		n = n*10 + uint64(digit)
	}
	return n, rest, true
}
