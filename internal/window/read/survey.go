package read

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"tallyroll/internal/window"
	"tallyroll/internal/window/internal/cluster"
	"tallyroll/internal/window/schema"
)

// Survey is what every question about all counters reads first.
type Survey struct {
	reader   *Reader
	snapshot // of the cursors of all shards, and of no hash
}

// Layout returns the namespace's layout.
func (s Survey) Layout() window.Layout { return s.dir.Layout }

// Streams returns the listed streams, sorted by name.
func (s Survey) Streams() []string { return s.dir.Streams }

// Now returns the moment of the survey by Redis's clock, in Unix milliseconds.
func (s Survey) Now() int64 { return s.at.milli }

// LatestHit returns a moment up to which there may be hits (Unix milliseconds), at least Now.
func (s Survey) LatestHit() int64 { return max(s.at.milli, s.all.latest) }

// complete reports whether no hit of a plan is known to be missing, whatever shard its counter is on.
func (s Survey) complete(p window.Plan) bool {
	p.Shard = window.AllShards
	return s.snapshot.complete(&p)
}

// countingSince returns when counting began on all shards; 0 if unknown for one of them.
func (s Survey) countingSince() int64 { return s.all.began }

// declared returns the declaration that holds on all shards.
func (s Survey) declared() (out schema.Declaration) {
	for i, shard := range s.shards {
		if shard.declared.From == 0 {
			return schema.Declaration{}
		}
		if i == 0 || shard.declared.From > out.From {
			out = shard.declared
		}
	}
	return out
}

// completeSince returns the moment from which nothing is known to be missing on any shard; see Names.
func (s Survey) completeSince() int64 { return s.all.whole() }

// WithSurvey reads all shards' cursors with the current layout and streams, and calls next, whose reads can
// only be newer than asOf; again if next finds too much changed.
func WithSurvey[T any](ctx context.Context, r *Reader, next func(Survey) (T, error)) (out T, err error) {
	for range maxTries {
		found, asked := r.ask(ctx, func(d *schema.Directory, _ int64) ([]window.Plan, error) {
			shards := make([]window.Plan, d.Layout.Shards)
			for i := range shards {
				shards[i].Shard = i
			}
			return shards, nil
		})
		if asked != nil { // also ErrStale: ask has tried often enough
			return out, asked
		}
		if out, err = next(Survey{r, found}); !errors.Is(err, ErrStale) {
			break
		}
	}
	return out, err
}

// stillHolds reports whether keys that live for grace after the survey's moment exist, as far as clocks are
// known.
func (s Survey) stillHolds(grace time.Duration) bool {
	now, _ := s.reader.clocks.now(s.reader.Local())
	return now.milli-s.at.milli <= grace.Milliseconds()
}

// answer answers like Reader.Answer, with reads after the survey's.
func (s Survey) answer(ctx context.Context, questions []window.Question) (window.Answers, error) {
	asked := totalsPlanner{questions: questions}
	found, err := s.reader.fetch(ctx, s.dir, s.at, asked.plan)
	if err != nil {
		return window.Answers{}, asked.named(err, len(questions))
	}
	return asked.add(found.totals()), nil
}

// affordable returns how many counters MaxCells allows to be read with all of these plans; a counter's cost
// does not depend on its name. The error is a *TooMuchError if these are fewer than least.
func (s Survey) affordable(least int, plans ...window.Plan) (int, error) {
	most := s.reader.MaxCells
	if most == 0 {
		return math.MaxInt, nil
	}
	var each int64
	for i := range plans {
		each += plans[i].Capacity()
	}
	if need := each * int64(least); need > most {
		return 0, &window.TooMuchError{What: "cells", Count: need, Max: most}
	}
	overflows := len(s.dir.OverflowsUnder("", plans[0].Range.From)) // which are read with the others
	return max(least, int(most/each)-overflows), nil
}

// About is what a namespace is, whatever its counters.
type About struct {
	Layout        window.Layout
	CountingSince int64              // when counting began on all shards, Unix milliseconds; 0 if unknown
	Declared      schema.Declaration // on all shards; From is 0 if there is none
}

// About describes the namespace. Its errors are those of Answer.
func (r *Reader) About(ctx context.Context) (About, error) {
	return WithSurvey(ctx, r, func(found Survey) (About, error) {
		return About{found.dir.Layout, found.countingSince(), found.declared()}, nil
	})
}

// Reach is how far all listed streams are counted, at one moment. A later read from the same masters has at
// least that, unless Redis loses commits or a worker counts a stream again.
type Reach struct {
	Id      string // of the namespace
	Layout  window.Layout
	Now     int64      // by Redis's clock, Unix milliseconds
	AsOf    int64      // that of an answer about all counters, Unix milliseconds
	Streams []Progress // by name
}

// Stream returns the progress of a stream, and whether it is listed.
func (r *Reach) Stream(name string) (out Progress, listed bool) {
	i, listed := slices.BinarySearchFunc(r.Streams, name, func(p Progress, name string) int {
		return strings.Compare(p.Stream, name)
	})
	if listed {
		out = r.Streams[i]
	}
	return out, listed
}

// Progress is how far the shards have got in one stream.
type Progress struct {
	Stream  string
	Counted bool   // every shard has a cursor
	Applied uint64 // the last sequence that has been applied to all counters; 0 before the first
	Stored  int64  // when the stream stored that message, Unix nanoseconds; 0 before the first
	AsOf    int64  // every hit that the stream stored before has been applied, Unix milliseconds
	Ended   int64  // when the stream was found gone, Unix milliseconds, or 0 while it lives

	// Shards has by shard the last sequence that has been applied to all of its counters. It is 0 for a shard
	// without a cursor, or with one of an earlier stream of this name, whose sequences mean other messages.
	Shards []uint64
	Latest int64 // a moment up to which those messages were stored, Unix milliseconds
}

// Progress returns how far the streams are counted. Errors are ErrNoLayout before the first worker has
// started, and a *ForeignError if another program has written to a key.
func (r *Reader) Progress(ctx context.Context) (Reach, error) {
	return WithSurvey(ctx, r, func(found Survey) (Reach, error) {
		streams := make([]Progress, len(found.dir.Streams))
		for i, stream := range found.dir.Streams {
			cursors := make([]cluster.Reply, len(found.shards))
			for shard, p := range found.shards {
				cursors[shard] = p.cursors[i]
			}
			p, err := progressOf(stream, found.dir.Listed[stream], cursors, found.claims[stream])
			if err != nil {
				return Reach{}, err
			}
			streams[i] = p
		}
		return Reach{found.dir.Id, found.dir.Layout, found.clock, found.asOf(), streams}, nil
	})
}

// progressOf combines the cursors of a stream. It ignores those of an earlier incarnation.
func progressOf(stream string, listed schema.Listed, cursors []cluster.Reply, claim schema.Claim) (Progress, error) {
	out := Progress{Stream: stream, AsOf: listed.Created, Ended: listed.Ended, Shards: make([]uint64, len(cursors))}
	var all []schema.CursorRecord
	var shards []int
	var created int64
	for shard, cursor := range cursors {
		c, found, err := schema.ParseCursorReply(cursor)
		if err != nil {
			return Progress{}, err
		}
		if found {
			c.Cursor = claim.Renew(c.Cursor)
			all, shards = append(all, c), append(shards, shard)
			created = max(created, c.Created)
		}
	}
	first := true
	for i, c := range all {
		if c.Created != created {
			continue
		}
		if c.Created/1e6 >= listed.Created {
			out.Shards[shards[i]], out.Latest = c.Seq, max(out.Latest, c.LatestHit())
		}
		if first || c.Seq < out.Applied {
			out.Applied, out.Stored = c.Seq, c.Stored
		}
		if first || c.AsOf < out.AsOf {
			out.AsOf = c.AsOf
		}
		first = false
	}
	out.Counted = len(all) == len(cursors) && len(all) > 0
	if !out.Counted {
		out.Applied, out.Stored = 0, 0
	}
	return out, nil
}
