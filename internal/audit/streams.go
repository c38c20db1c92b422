package audit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/time/rate"

	"tallyroll/internal/consume/source"
	"tallyroll/internal/platform/wait"
	"tallyroll/internal/window"
	"tallyroll/internal/window/inspect"
	"tallyroll/internal/window/schema"
)

type stream struct {
	name   string
	ended  bool
	source source.Stream // nil if it has ended
	state  source.State  // when it was last confirmed

	// when the latest message was stored that cursors name, Unix nanoseconds; of all cursors that were read
	latest int64

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

// addMark remembers a message that a cursor names.
func (s *stream) addMark(shard int, seq uint64, stored int64) {
	if seq > 0 && stored > 0 && !slices.ContainsFunc(s.marks[seq], func(m namedMessage) bool {
		return m.stored == stored
	}) {
		s.marks[seq] = append(s.marks[seq], namedMessage{stored, shard})
	}
}

func (s *stream) isUncounted() bool {
	return !slices.ContainsFunc(s.cursors, func(c window.Cursor) bool { return c.Furthest() > 0 })
}

// streamSet has the streams of a namespace, and what their cursors hold.
type streamSet struct {
	store      *schema.Store
	namespace  string
	layout     window.Layout
	pace       pace
	inspector  *inspect.Inspector
	all        []*stream
	unlisted   []string // streams that have cursors and are not listed
	incomplete []int64  // by shard, Unix milliseconds; see bounds
	erased     []int64  // by shard; see bounds
	clock      int64    // of Redis, Unix milliseconds, when it was last read
	declared   schema.Declaration
}

// findStreams finds the streams in Redis: those that are listed, and those with cursors.
func findStreams(ctx context.Context, store *schema.Store, js jetstream.JetStream, namespace string,
	layout window.Layout, withCursors []string, pace pace) (*streamSet, error) {
	listed, err := store.Streams(ctx)
	if err != nil {
		return nil, err
	}
	set := &streamSet{
		store: store, namespace: namespace, layout: layout, pace: pace,
		incomplete: make([]int64, layout.Shards), erased: make([]int64, layout.Shards),
	}
	for _, name := range withCursors {
		if _, there := listed[name]; !there {
			set.unlisted = append(set.unlisted, name)
			listed[name] = schema.Listed{}
		}
	}
	names := slices.Sorted(maps.Keys(listed))
	for _, name := range names {
		s := &stream{name: name, ended: listed[name].Ended > 0}
		if !s.ended {
			live := source.New(js, namespace, name, maxPullBytes)
			live.Description = "tallyroll audit of " + namespace
			s.source = live
		}
		set.all = append(set.all, s)
	}
	set.inspector = inspect.New(store, layout, names)
	return set, nil
}

// readCursors reads the cursors of all shards. each, if not nil, gets each shard's with their time.
func (set *streamSet) readCursors(ctx context.Context, each func(shard int, places []inspect.Place,
	at time.Time)) error {
	for _, s := range set.all {
		s.cursors = s.cursors[:0]
	}
	for shard := range set.layout.Shards {
		set.pace.wait(ctx, len(set.all))
		places, erased, clock, err := set.inspector.Cursors(ctx, shard)
		if err != nil {
			return err
		}
		set.clock = max(set.clock, clock.UnixMilli())
		set.erased[shard] = max(set.erased[shard], erased)
		set.observe(shard, places, clock.UnixMilli())
		for i, p := range places {
			if p.Exists {
				set.all[i].cursors = append(set.all[i].cursors, p.Cursor)
			}
		}
		if each != nil {
			each(shard, places, clock)
		}
	}
	return nil
}

// observe keeps what cursors hold besides positions.
func (set *streamSet) observe(shard int, places []inspect.Place, at int64) {
	for i, p := range places {
		s := set.all[i]
		s.latest = max(s.latest, p.Latest, p.Stored, p.Ahead.Stored)
		set.incomplete[shard] = max(set.incomplete[shard], p.IncompleteBefore)
		if p.Declared.From > 0 {
			set.declared = p.Declared
		}
		if p.Torn { // the next commit moves incomplete_before
			set.incomplete[shard] = max(set.incomplete[shard], at+1, p.Latest/1e6+1, p.AsOf+1)
		}
		if s.marks != nil && p.Exists {
			s.addMark(shard, p.Seq, p.Stored)
			s.addMark(shard, p.Ahead.Seq, p.Ahead.Stored)
		}
	}
}

// confirm checks that the streams are those of the cursors, which were read before.
func (set *streamSet) confirm(ctx context.Context) error {
	live, counted := 0, false
	for _, s := range set.all {
		counted = counted || len(s.cursors) > 0
		if s.ended {
			continue
		}
		live++
		state, err := source.Confirmed(ctx, s.source)
		switch {
		case errors.Is(err, source.ErrNoStream) && s.isUncounted():
			s.ended = true // nothing of it was counted
			continue
		case errors.Is(err, source.ErrNoStream):
			return fmt.Errorf("%w: stream %s has cursors in Redis, and this NATS does not have it: correct NATS_URL; "+
				"or if the stream was deleted, let a worker run until it logs that", errUnjudged, s.name)
		case err != nil:
			return err
		}
		for _, c := range s.cursors {
			if c.Created != state.Created {
				return fmt.Errorf("%w: stream %s was created at %s, and its cursors are about one created at %s: "+
					"start a worker, which compares them, and run again",
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
		return fmt.Errorf("%w: no stream has a cursor in the namespace %s: nothing was counted there", errUnjudged,
			set.namespace)
	case live == 0:
		return fmt.Errorf("%w: all streams of the namespace %s have ended, and nothing is left to compare with",
			errUnjudged, set.namespace)
	}
	return nil
}

// latest is when the latest message that any cursor names was stored, in Unix milliseconds.
func (set *streamSet) latest() (at int64) {
	for _, s := range set.all {
		at = max(at, s.latest/1e6)
	}
	return at
}

// inspect reads the cells of some counters of a shard, together with its cursors.
func (set *streamSet) inspect(ctx context.Context, shard int, names []string,
	withUniques func(uint64) bool) (inspect.Found, error) {
	var found inspect.Found
	err := retryRead(ctx, func() (err error) {
		found, err = set.inspector.Read(ctx, shard, names, set.clock-clockSlack, set.latest(), withUniques)
		return err
	})
	if err == nil {
		set.clock = max(set.clock, found.At*1000)
		set.observe(shard, found.Places, found.At*1000)
	}
	return found, err
}

// clockSlack, in milliseconds, is how far the clocks of a cluster's nodes may differ: a read includes what
// one of them still holds, whatever another one's clock.
const clockSlack = 10_000

const retryAfter = 500 * time.Millisecond

// retryRead asks Redis again after a failure: a slot may have moved, or a master may have died.
func retryRead(ctx context.Context, ask func() error) (err error) {
	for range 20 {
		if err = ask(); err == nil || window.IsForeign(err) {
			return err
		}
		if err := wait.Sleep(ctx, retryAfter); err != nil {
			return err
		}
	}
	return err
}

// pace bounds how many messages, hashes and keys are read per second.
type pace struct{ *rate.Limiter }

// newPace bounds items per second; 0 is unlimited. After a slow reply it catches up on a tenth of a second.
func newPace(perSecond float64) pace {
	if perSecond == 0 {
		return pace{rate.NewLimiter(rate.Inf, math.MaxInt)}
	}
	return pace{rate.NewLimiter(rate.Limit(perSecond), max(1, int(perSecond/10)))}
}

func (p pace) wait(ctx context.Context, items int) {
	for ; items > 0; items -= p.Burst() {
		_ = p.WaitN(ctx, min(items, p.Burst())) // it fails when ctx ends, which the caller's read reports
	}
}
