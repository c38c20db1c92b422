package source

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/rejects"
)

// Stream is a stream that a session reads: JetStream, or a simulation in the tests of internal/consume.
type Stream interface {
	// Check returns the stream's current state, or ErrNoStream. A single answer may be stale: see Confirmed.
	Check(ctx context.Context) (Check, error)
	// Next returns the first message from a sequence on, or 0 if the stream has none. In a cluster, a lagging
	// server may answer: a message that it has is real, but one that it lacks may still arrive there.
	Next(ctx context.Context, from uint64) (seq uint64, stored int64, err error)
	// Open prepares to read from a sequence on.
	Open(ctx context.Context, from uint64) (Feed, error)
	// Reject stores rejects, and returns how many are known to be stored.
	Reject(ctx context.Context, refused []rejects.Reject) (stored int, err error)
}

// Feed delivers a stream's messages in order, from one of them on.
type Feed interface {
	// Pending returns how many messages were to be read when the feed was opened.
	Pending() uint64
	// Start delivers messages one by one on its own goroutine. It calls lost at most once, when deliveries
	// can no longer be trusted.
	Start(deliver func(Delivery), lost func(error)) error
	// Stop makes the feed begin no further delivery.
	Stop()
	// Release frees what the server keeps for the feed.
	Release() error
}

type Delivery struct {
	Subject string
	Header  nats.Header
	Data    []byte
	Skip    string // why it counts nothing here, as in the metric; empty: it counts
	Seq     uint64 // in the stream
	Nth     uint64 // of this feed, from 1
	Stored  int64  // Unix nanoseconds
}

// State is a stream's state as its server reports it.
type State struct {
	Subjects    []string
	Created     int64  // Unix nanoseconds: its incarnation
	First, Last uint64 // sequences held; first is last+1 if the stream is empty
	FirstStored int64  // of the first message, Unix nanoseconds; seen if the stream is empty
	LastStored  int64  // of the last message, held or not, Unix nanoseconds
	At          int64  // Unix milliseconds: no message after last was stored before this moment
	Mirror      bool   // of another stream: its messages keep the times at which that one stored them
	Origin      string // of a mirror, if that is a stream of the same JetStream
	Seen        int64  // Unix milliseconds: every message stored from this moment on is after last
	Clock       int64  // Unix milliseconds: later than the clock that stores messages; 0 if unknown
	Retention   jetstream.RetentionPolicy
	Begin       uint64 // the first sequence that a message can have had, if later than 1 (first_seq, opt_start_seq)
	Gaps        string // why sequences may be missing that no hit ever had; empty: each missing one was a message
	Deleted     uint64 // how many sequences are missing after the first message
	// Dropped is the moment (Unix milliseconds) before which everything was stored that the stream's present
	// limits may have discarded; 0 for nothing. Only a state with Gaps has it.
	Dropped int64
	Limits  string // identifies the settings that Dropped, Begin and Gaps rely on, and
	Copy    string // what a mirror copies; empty for no mirror
	// OriginFirst is the first sequence that a mirror's origin still holds, or would; 0 if unknown. All that the
	// origin has discarded before it was stored by OriginStored (Unix nanoseconds).
	OriginFirst  uint64
	OriginStored int64
	Ahead        time.Duration // how far the server's clock is ahead of this process's; see window.ClockAhead
}

// Since returns a Unix millisecond before which the stream stored nothing; 0, unknown, for a mirror.
func (s State) Since() int64 {
	switch {
	case s.Mirror:
		return 0
	case s.First <= s.Last && s.FirstStored > 0: // a mirror that was promoted has messages older than itself
		return min(s.Created, s.FirstStored) / 1e6
	}
	return s.Created / 1e6
}

// Settings returns the settings by which missing sequences are judged, as a cursor keeps them. Present ones
// prove nothing about the time before they were set.
func (s State) Settings() string {
	gaps := map[string]string{"": noGaps, GapsOfFilter: "filter", GapsOfSchedules: "schedules"}[s.Gaps]
	return cmp.Or(s.Copy, noOrigin) + " " + gaps + " " + s.Limits
}

// What Settings has for a stream without an Origin, and for one without Gaps.
const noOrigin, noGaps = "-", "none"

// Changes are those of a stream's settings since a cursor was written.
type Changes struct {
	Any    bool // a setting, or the cursor has none
	Gaps   bool // missing sequences were messages until then
	Origin bool // the stream became or was a mirror, or is one of other messages
}

// ChangesSince compares the settings with those of a cursor.
func (s State) ChangesSince(settings string) Changes {
	origin, rest, known := strings.Cut(settings, " ")
	return Changes{settings != s.Settings(), s.Gaps != "" && strings.HasPrefix(rest, noGaps+" "),
		known && origin != cmp.Or(s.Copy, noOrigin)}
}

// BeforeFirst returns the sequence before the first one that a message of the stream can have had.
func (s State) BeforeFirst() uint64 { return max(s.Begin, 1) - 1 }

// Why a stream has Gaps.
const (
	GapsOfFilter    = "it mirrors only some subjects of its origin, and keeps that stream's sequences"
	GapsOfSchedules = "it may hold schedules (allow_msg_schedules), which the server removes when their messages come"
)

// EndStored returns the last message's time; 0 if the stream is empty, because a purge overwrites that time.
func (s State) EndStored() int64 {
	if s.First > s.Last {
		return 0
	}
	return s.LastStored
}

// Check is one answer about a stream, and what it shows about the answering server.
type Check struct {
	State      State
	Leadership Leadership
	Asked      time.Time // by this process's clock, like Answered
	Answered   time.Time
}

// Leadership is a leadership, as its leader reports it. Zero: a server without a cluster needs no
// confirmation.
type Leadership struct {
	Clustered bool
	Leader    string    // empty during an election, when any replica answers
	Since     time.Time // zero if the server does not report it
	Majority  bool      // the leader has heard enough followers at some time
	// Silence is how long ago the followers of its majority were heard. They followed this leader until then,
	// and no other majority can form without one of them.
	Silence time.Duration
}

// ErrNoStream means that the stream does not exist (any more).
var ErrNoStream = errors.New("the stream does not exist")
