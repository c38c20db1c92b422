package consume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/consume/source"
	"tallyroll/internal/window"
	"tallyroll/internal/window/schema"
)

// A hit that is stored in several streams counts in one of them.
//
// A mirror has its origin's sequences and times, and no message shows that it is a copy. So a mirror stands
// still while its origin counts. If the origin has ended, the mirror continues after the origin's cursors.
//
// A message that was sourced or republished names its origin, so it is skipped by itself, and the stream's
// other messages count. Which streams count can change, so those whose copies are skipped are a part of the
// version by which messages are read (naming.Origins). It begins with the first such message.

// ErrCopy means that a stream stands still, because another one has its messages and counts.
var ErrCopy = errors.New("stands still, because its hits would count twice")

var errNewOrigin = errors.New("copies are skipped from here on")

// Copies finds which streams hold copies of others that count. It is safe for concurrent use.
type Copies struct {
	// Counts reports whether a stream exists that a worker reads, or one that ended was counted.
	Counts func(stream string) bool
	// MayCount reports whether a worker would read a stream of that name, or one is listed as live.
	MayCount func(stream string) bool

	mu      sync.Mutex
	origins map[string][]string // by stream: those whose copies it skips
}

// set sets the origins whose copies a stream skips.
func (c *Copies) set(stream string, origins []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.origins == nil {
		c.origins = make(map[string][]string)
	}
	c.origins[stream] = origins
}

// forget forgets a stream that this worker no longer reads.
func (c *Copies) forget(stream string) {
	if c != nil {
		c.set(stream, nil)
	}
}

func (c *Copies) of(stream string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.origins[stream]
}

// add adds an origin that the reader has found.
func (c *Copies) add(stream, origin string) {
	c.set(stream, slices.Concat(c.of(stream), []string{origin}))
}

// next returns the origins whose copies a stream skips from now on: of those of the last version and of those
// found since, the ones that count.
func (c *Copies) next(stream string, last []string) []string {
	if c == nil {
		return nil
	}
	all := slices.Sorted(slices.Values(slices.Concat(last, c.of(stream))))
	now := slices.DeleteFunc(slices.Compact(all), func(origin string) bool { return !c.Counts(origin) })
	c.set(stream, now)
	return now
}

// Notes describes the streams that hold copies which are skipped.
func (c *Copies) Notes() (notes []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, stream := range slices.Sorted(maps.Keys(c.origins)) {
		for _, origin := range c.origins[stream] {
			notes = append(notes, note(stream, origin))
		}
	}
	return notes
}

func note(stream, origin string) string {
	return fmt.Sprintf("stream %s holds copies of messages of %s, which counts: they are skipped; to count them there "+
		"instead, leave %s out of INGEST_STREAMS", stream, origin, origin)
}

// refused returns why a stream in this state stands still, or nil.
func (c *Copies) refused(state source.State) error {
	if c == nil || state.Origin == "" || !c.MayCount(state.Origin) {
		return nil
	}
	return fmt.Errorf("it mirrors %s, which counts, or will when it exists: it %w: to count the mirror instead, leave "+
		"%s out of INGEST_STREAMS", state.Origin, ErrCopy, state.Origin)
}

// StandsStill reports whether the stream with this info stands still.
func (c *Copies) StandsStill(js jetstream.JetStream, info *jetstream.StreamInfo) bool {
	return c.refused(source.State{Origin: source.OriginOf(js, info)}) != nil
}

// unlist ends a copy that earlier workers listed: its origin has what it holds, so as_of need not wait.
func (p planner) unlist(ctx context.Context) error {
	_, err := p.Store.EndStream(ctx, p.stream, p.state.Seen, 0, func() (bool, error) { return true, nil })
	return err
}

func isWritten(c window.Cursor) bool { return c.Created != 0 }

// inherit returns the cursors after which a copy without own cursors continues: those of its origin, or of
// another stream that held the same messages. A stream that is no copy has none.
func (h *history) inherit(ctx context.Context, store *schema.Store, layout window.Layout,
	stream string) ([]window.Cursor, error) {
	s, none := h.state, make([]window.Cursor, layout.Shards)
	if s.Mirror {
		if s.Origin == "" {
			return none, nil
		}
		return readCursors(ctx, store, layout, s.Origin)
	}
	if s.First > s.Last {
		return none, nil
	}
	old := s.FirstStored < s.Created // only a copy holds messages older than itself
	listed, err := store.Streams(ctx)
	if err != nil {
		return nil, err
	}
	for _, other := range slices.Sorted(maps.Keys(listed)) {
		if other == stream || !old && listed[other].Ended == 0 { // a mirror that was promoted may be as old
			continue
		}
		cursors, err := readCursors(ctx, store, layout, other)
		if err != nil {
			return nil, err
		}
		of := history{source: h.source, state: s, found: h.found, cursors: cursors}
		for _, c := range cursors {
			same, err := of.holdsApplied(ctx, c.Created)
			switch {
			case err != nil:
				return nil, err
			case same && listed[other].Ended == 0:
				return nil, fmt.Errorf("it holds messages that were counted as those of %s, which still counts: %w: "+
					"delete it, or leave it out of INGEST_STREAMS", other, errUnidentified)
			case same:
				return cursors, nil
			}
		}
	}
	return none, nil
}
