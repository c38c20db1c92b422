package window

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Reader answers questions from Redis. It is safe for concurrent use.
type Reader struct {
	store *Store

	mu      sync.Mutex
	layout  string // the record as Redis keeps it
	parsed  Layout
	streams map[string]string // as Redis keeps them; see parseEnded
}

// NewReader reads the namespace of a store.
func NewReader(store *Store) *Reader { return &Reader{store: store} }

// Question asks for the hits of one counter in a range; see Range.
type Question struct {
	Counter string
	Range   Range
}

// Answer is a total, and what it rests on.
type Answer struct {
	Total
	Tier     Tier
	Complete bool // no hit of the range is known to be missing
}

// Answers are the answers to several questions at one moment.
type Answers struct {
	// AsOf is a moment in Unix milliseconds: every hit stored before it is in
	// the answers. 0 where some stream has not been counted at all yet.
	AsOf    int64
	Answers []Answer
}

// QuestionError is a question that cannot be answered whatever Redis holds.
type QuestionError struct {
	Index int // of the question
	Err   error
}

func (e *QuestionError) Error() string { return e.Err.Error() }
func (e *QuestionError) Unwrap() error { return e.Err }

// errStale says that the layout or the list of streams has changed since it was cached.
var errStale = errors.New("layout or streams have changed")

// Answer answers all questions in one pipelined round trip; now is in Unix
// milliseconds. It returns ErrNoLayout before the first worker has started, a
// *QuestionError for a bad question, and errors of Redis as they are.
func (r *Reader) Answer(ctx context.Context, now int64, questions []Question) (Answers, error) {
	for range 3 { // the second try has what the first one found to have changed
		layout, record, streams, err := r.cached(ctx)
		if err != nil {
			return Answers{}, err
		}
		plans := make([]Plan, len(questions))
		for i, q := range questions {
			if plans[i], err = layout.Plan(r.store.keys.namespace, q.Counter, q.Range, now); err != nil {
				return Answers{}, &QuestionError{i, err}
			}
		}
		out, err := r.read(ctx, plans, record, streams)
		if !errors.Is(err, errStale) {
			return out, err
		}
	}
	return Answers{}, errStale
}

// cached does not hold the lock while it asks Redis: the lock knows no
// deadline, and a Redis that hangs would make each caller wait for all before it.
func (r *Reader) cached(ctx context.Context) (Layout, string, map[string]string, error) {
	r.mu.Lock()
	record, known, listed := r.layout, r.parsed, r.streams
	r.mu.Unlock()
	if record != "" {
		return known, record, listed, nil
	}
	var layout *redis.StringCmd
	var streams *redis.MapStringStringCmd
	_, err := r.store.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		layout = p.Get(ctx, r.store.keys.layout())
		streams = p.HGetAll(ctx, r.store.keys.streams())
		return nil
	})
	if errors.Is(err, redis.Nil) {
		return Layout{}, "", nil, ErrNoLayout
	}
	if err != nil {
		return Layout{}, "", nil, fmt.Errorf("read layout of %s: %w", r.store.keys.namespace, err)
	}
	record, listed = layout.Val(), streams.Val()
	if known, err = decodeLayout(record); err != nil {
		return Layout{}, "", nil, err
	}
	r.mu.Lock()
	r.layout, r.parsed, r.streams = record, known, listed
	r.mu.Unlock()
	return known, record, listed, nil
}

func (r *Reader) forget() {
	r.mu.Lock()
	r.layout = ""
	r.mu.Unlock()
}

// read sends the pipeline. Cursors come before the hashes: a commit between
// them can then only make the counts newer than AsOf says.
func (r *Reader) read(ctx context.Context, plans []Plan, record string, streams map[string]string) (Answers, error) {
	var layout *redis.StringCmd
	var listed *redis.MapStringStringCmd
	cursors := make(map[int]map[string]*redis.SliceCmd) // by shard and stream
	hashes := make(map[string]*redis.MapStringStringCmd)
	err := r.store.readInOrder(ctx, func(p redis.Pipeliner) {
		layout = p.Get(ctx, r.store.keys.layout())
		listed = p.HGetAll(ctx, r.store.keys.streams())
		clear(cursors)
		for _, plan := range plans {
			if _, ok := cursors[plan.Shard]; ok {
				continue
			}
			cursors[plan.Shard] = make(map[string]*redis.SliceCmd, len(streams))
			for stream := range streams {
				cursors[plan.Shard][stream] = p.HMGet(ctx, r.store.keys.cursor(plan.Shard, stream), cursorFields...)
			}
		}
	}, func(p redis.Pipeliner) {
		clear(hashes)
		for _, plan := range plans {
			for _, key := range plan.keys {
				if _, ok := hashes[key]; !ok {
					hashes[key] = p.HGetAll(ctx, key)
				}
			}
		}
	})
	if errors.Is(err, redis.Nil) {
		r.forget()
		return Answers{}, ErrNoLayout
	}
	if err != nil {
		return Answers{}, fmt.Errorf("read %d hashes: %w", len(hashes), err)
	}
	if layout.Val() != record || !maps.Equal(listed.Val(), streams) {
		r.forget()
		return Answers{}, errStale
	}

	byShard := make(map[int]progress, len(cursors))
	out := Answers{Answers: make([]Answer, len(plans))}
	for i, plan := range plans {
		on, ok := byShard[plan.Shard]
		if !ok {
			if on, err = parseProgress(cursors[plan.Shard], streams); err != nil {
				return Answers{}, err
			}
			byShard[plan.Shard] = on
		}
		cells := make([][]Cell, len(plan.keys))
		for j, key := range plan.keys {
			if cells[j], err = parseCells(key, hashes[key].Val()); err != nil {
				return Answers{}, err
			}
		}
		out.Answers[i] = Answer{Total: plan.sum(cells), Tier: plan.Tier, Complete: on.known && plan.Range.From >= on.completeSince}
		if i == 0 || on.asOf < out.AsOf {
			out.AsOf = on.asOf
		}
	}
	return out, nil
}

// progress is what the cursors of a shard say together.
type progress struct {
	known         bool  // every live stream has a cursor, and there is one
	asOf          int64 // the earliest of the live streams; where all have ended, when the last of them had
	completeSince int64 // the moment from which nothing is known to be missing
}

// parseProgress: counting began when the oldest stream was created; a younger
// stream took nothing away from what was counted before it, and one that has
// ended has nothing more to be waited for.
func parseProgress(cursors map[string]*redis.SliceCmd, streams map[string]string) (progress, error) {
	var out progress
	var began, lastEnd int64
	waitsFor := false // a live stream
	for stream, cmd := range cursors {
		end, err := parseEnded(stream, streams[stream])
		if err != nil {
			return progress{}, err
		}
		c, found, err := parseCursor(cmd.Val())
		if err != nil {
			return progress{}, err
		}
		switch {
		case end > 0:
			if lastEnd = max(lastEnd, end); !found {
				continue
			}
		case !found:
			return progress{}, nil
		case !waitsFor || c.AsOf < out.asOf:
			waitsFor, out.asOf = true, c.AsOf
		}
		if created := c.Created / 1e6; !out.known || created < began {
			began = created
		}
		out.completeSince = max(out.completeSince, c.IncompleteBefore)
		out.known = true
	}
	if !waitsFor && out.known {
		out.asOf = lastEnd
	}
	out.completeSince = max(out.completeSince, began)
	return out, nil
}

func parseCells(key string, hash map[string]string) ([]Cell, error) {
	cells := make([]Cell, 0, len(hash))
	for field, value := range hash {
		f, errField := strconv.ParseInt(field, 10, 64)
		n, errCount := strconv.ParseInt(value, 10, 64)
		if err := errors.Join(errField, errCount); err != nil || n < 0 {
			return nil, fmt.Errorf("hash %s: field %q with value %q is not a cell: something else writes to this namespace", key, field, value)
		}
		cells = append(cells, Cell{f, n})
	}
	return cells, nil
}
