package audit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"tallyroll/internal/source"
	"tallyroll/internal/window"
)

type stream struct {
	name   string
	ended  bool
	source source.Stream // nil if it has ended
	state  source.State  // when it was looked at last

	latest int64 // when the latest message was stored that cursors name, Unix nanoseconds; of all cursors that were read

	// Of one pass:
	cursors []window.Cursor           // of all shards, as they were read last
	marks   map[uint64][]namedMessage // by sequence
}

// namedMessage is the message at a cursor.
type namedMessage struct {
	stored int64 // Unix nanoseconds
	shard  int
}

// maxPullBytes bounds what the client buffers of a stream.
const maxPullBytes = 8 << 20

var errUnjudged = errors.New("nothing can be judged")

// findStreams finds the streams in Redis: those that are listed, and those with cursors.
func (a *auditor) findStreams(ctx context.Context, withCursors []string) error {
	listed, err := a.store.Streams(ctx)
	if err != nil {
		return err
	}
	for _, name := range withCursors {
		if _, there := listed[name]; !there {
			a.unlisted = append(a.unlisted, name)
			listed[name] = window.Listed{}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(listed)) {
		s := &stream{name: name, ended: listed[name].Ended > 0}
		if !s.ended {
			js := source.New(a.js, a.namespace, name, maxPullBytes)
			js.Description = "tallyroll audit of " + a.namespace
			s.source = js
		}
		a.streams = append(a.streams, s)
	}
	a.inspector = window.Inspect(a.store, a.layout, a.names())
	return nil
}

func (a *auditor) names() (out []string) {
	for _, s := range a.streams {
		out = append(out, s.name)
	}
	return out
}

// readCursors reads the cursors of all shards. each, if not nil, gets each shard's with their time.
func (a *auditor) readCursors(ctx context.Context, each func(shard int, places []window.Place, at time.Time)) error {
	for _, s := range a.streams {
		s.cursors = s.cursors[:0]
	}
	for shard := range a.layout.Shards {
		a.wait(ctx, len(a.streams))
		places, erased, clock, err := a.inspector.Cursors(ctx, shard)
		if err != nil {
			return err
		}
		a.clock = max(a.clock, clock.UnixMilli())
		a.erased[shard] = max(a.erased[shard], erased)
		a.observe(shard, places, clock.UnixMilli())
		for i, p := range places {
			if p.Exists {
				a.streams[i].cursors = append(a.streams[i].cursors, p.Cursor)
			}
		}
		if each != nil {
			each(shard, places, clock)
		}
	}
	return nil
}

// observe keeps what cursors hold besides positions.
func (a *auditor) observe(shard int, places []window.Place, at int64) {
	for i, p := range places {
		s := a.streams[i]
		s.latest = max(s.latest, p.Latest, p.Stored, p.Ahead.Stored)
		a.admitted[shard] = max(a.admitted[shard], p.IncompleteBefore)
		if p.Torn { // the next commit admits it
			a.admitted[shard] = max(a.admitted[shard], at+1, p.Latest/1e6+1, p.AsOf+1)
		}
		if s.marks != nil && p.Exists {
			s.remember(shard, p.Seq, p.Stored)
			s.remember(shard, p.Ahead.Seq, p.Ahead.Stored)
		}
	}
}

// remember remembers a message that a cursor names.
func (s *stream) remember(shard int, seq uint64, stored int64) {
	if seq > 0 && stored > 0 {
		if !slices.ContainsFunc(s.marks[seq], func(m namedMessage) bool { return m.stored == stored }) {
			s.marks[seq] = append(s.marks[seq], namedMessage{stored, shard})
		}
	}
}

// judgeStreams checks that the streams are those of the cursors, which were read before.
func (a *auditor) judgeStreams(ctx context.Context) error {
	live, counted := 0, false
	for _, s := range a.streams {
		counted = counted || len(s.cursors) > 0
		if s.ended {
			continue
		}
		live++
		state, err := source.Confirmed(ctx, s.source)
		switch {
		case errors.Is(err, source.ErrNoStream) && s.untouched():
			s.ended = true // nothing of it was counted
			continue
		case errors.Is(err, source.ErrNoStream):
			return fmt.Errorf("%w: stream %s has cursors in Redis, and this NATS does not have it: correct NATS_URL; or if the stream was deleted, let a worker run until it says so", errUnjudged, s.name)
		case err != nil:
			return err
		}
		for _, c := range s.cursors {
			if c.Created != state.Created {
				return fmt.Errorf("%w: stream %s was created at %s, and its cursors are about one created at %s: start a worker, which finds out what they have in common, and run again",
					errUnjudged, s.name, moment(state.Created), moment(c.Created))
			}
		}
		if s.state.Created != 0 && (s.state.Created != state.Created || state.Last < s.state.Last) {
			return fmt.Errorf("%w: stream %s was recreated or rolled back meanwhile: run again", errUnjudged, s.name)
		}
		s.state = state
	}
	switch {
	case !counted:
		return fmt.Errorf("%w: no stream has a cursor in the namespace %s: nothing was counted there", errUnjudged, a.namespace)
	case live == 0:
		return fmt.Errorf("%w: all streams of the namespace %s have ended, and nothing is left to compare with", errUnjudged, a.namespace)
	}
	return nil
}

func (s *stream) untouched() bool {
	return !slices.ContainsFunc(s.cursors, func(c window.Cursor) bool { return c.Furthest() > 0 })
}

func moment(nano int64) string { return time.Unix(0, nano).UTC().Format(time.RFC3339Nano) }
