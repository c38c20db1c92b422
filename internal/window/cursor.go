package window

import (
	"fmt"
	"math/bits"
	"time"
)

// Cursor holds how far a shard has got in a stream. It moves in the transaction that adds the counts.
type Cursor struct {
	// Created is the stream's creation time in Unix nanoseconds: the incarnation that Seq belongs to.
	Created int64
	// Seq is the last sequence that has been applied to all counters; 0 before the first.
	Seq uint64
	// Stored is when the stream stored that message, in Unix nanoseconds.
	Stored int64
	// Latest is when the latest message applied to any counter was stored (Unix nanoseconds). It is later
	// than Stored only if the clock of NATS was set back in between.
	Latest int64
	// AsOf is a moment in Unix milliseconds: every hit that the stream stored before it has been applied.
	AsOf int64
	// IncompleteBefore is a moment (Unix milliseconds) before which hits of this stream may be missing,
	// because messages were discarded unread; 0 if none were.
	IncompleteBefore int64
	// Ahead lists counters that are further than Seq, while a batch is committed in several transactions.
	Ahead Ahead
	// Naming holds how counters were named up to Seq. This package does not interpret it.
	Naming string
	// Ended is set if its worker found the stream gone, and knows of no hit that was not applied.
	Ended bool
	// Refused is the last sequence of which rejects may be stored. Only the first shard's cursor has it.
	Refused uint64
	// Settings holds the stream's settings by which missing sequences were judged up to Seq. This package does
	// not interpret it.
	Settings string
}

// Ahead is a position that the first Done of Parts parts of the counters have reached; zero if none is ahead.
type Ahead struct {
	Seq         uint64
	Stored      int64 // of that message, Unix nanoseconds
	Done, Parts int
}

// Applied returns the last sequence applied to a counter with this HashCounter.
func (c Cursor) Applied(counterHash uint64) uint64 {
	if c.Ahead.Parts > 0 && partOf(counterHash, c.Ahead.Parts) < c.Ahead.Done {
		return max(c.Seq, c.Ahead.Seq)
	}
	return c.Seq
}

func (c Cursor) IsBehind(o Cursor) bool {
	return c.Seq < o.Seq || c.Seq == o.Seq && c.Ahead.Done < o.Ahead.Done
}

// LatestHit returns a moment (Unix milliseconds) up to which applied hits may have been stored. Latest does
// not cover earlier streams of this name, but these had stored all of theirs at its creation.
func (c Cursor) LatestHit() int64 {
	return max(c.Created, c.Latest, c.Stored, c.Ahead.Stored) / 1e6
}

// Furthest returns the last sequence applied to any counter.
func (c Cursor) Furthest() uint64 { return max(c.Seq, c.Ahead.Seq) }

// Judged returns the last sequence applied to any counter, or of which rejects may be stored.
func (c Cursor) Judged() uint64 { return max(c.Furthest(), c.Refused) }

// DiffersInAsOf reports whether c and o differ only in AsOf.
func (c Cursor) DiffersInAsOf(o Cursor) bool {
	differs := c.AsOf != o.AsOf
	c.AsOf = o.AsOf
	return differs && c == o
}

// partOf spreads counters over parts by the upper bits of their hash. The lower bits choose the shard.
func partOf(counterHash uint64, parts int) int {
	high, _ := bits.Mul64(counterHash, uint64(parts))
	return int(high)
}

// String returns "seq stored done/parts"; "" for the zero value.
func (a Ahead) String() string {
	if a == (Ahead{}) {
		return ""
	}
	return fmt.Sprintf("%d %d %d/%d", a.Seq, a.Stored, a.Done, a.Parts)
}

// ClockAhead returns how far a server's clock is ahead of this process's (negative: behind), if it showed
// that moment between question and answer, less what the round trip may explain.
func ClockAhead(server, asked, answered time.Time) time.Duration {
	switch {
	case server.After(answered):
		return server.Sub(answered)
	case server.Before(asked):
		return server.Sub(asked)
	}
	return 0
}
