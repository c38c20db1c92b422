package window

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// fetch plans for a layout and a moment, and reads once what the plans need. The snapshot is of the
// moment when everything had been read. fetch returns errStale if the plans turn out to be old.
// It reads the cursors before the hashes, so a commit between them can only make the
// counts newer than AsOf says. It reads the clock last: what had not expired by then
// was there.
func (r *Reader) fetch(ctx context.Context, dir *directory, at instant, plan planner) (snapshot, error) {
	plans, err := plan(dir.layout, at.milli)
	if err != nil {
		return snapshot{}, err
	}
	hashes := hashesOf(plans)
	if n := hashes.room(); r.MaxCells > 0 && n > r.MaxCells {
		return snapshot{}, &TooMuchError{What: "cells", Count: n, Max: r.MaxCells}
	}
	replies := replies{
		keys: r.store.keys, dir: dir, hashes: hashes,
		cursors: make(map[int][]*redis.SliceCmd), cells: make([]*redis.MapStringStringCmd, len(hashes.all)),
	}
	for i := range plans {
		replies.cursors[plans[i].shard] = nil
	}
	sent := r.local()
	times, err := r.store.readInOrder(ctx,
		func(p redis.Pipeliner) { replies.queueCursors(ctx, p) },
		func(p redis.Pipeliner) { replies.queueHashes(ctx, p) })
	if errors.Is(err, redis.Nil) {
		r.remember(nil)
		return snapshot{}, ErrNoLayout
	}
	if err != nil {
		return snapshot{}, r.blame(plans, fmt.Errorf("read %d hashes: %w", len(hashes.all), err))
	}
	holds := r.clocks.learn(at, sent, r.local(), times, graceOf(plans))
	if !dir.is(replies.record.Val(), replies.list.Val()) {
		r.remember(nil)
		return snapshot{}, errStale
	}
	if !holds {
		return snapshot{}, errStale
	}
	out, err := replies.parse()
	if err != nil {
		return snapshot{}, r.blame(plans, err)
	}
	out.plans, out.at, out.clock = plans, at, times.latest().UnixMilli()
	return out, out.settle(plan)
}

// replies are the commands of a fetch.
type replies struct {
	keys   keys
	dir    *directory
	hashes hashSet

	record  *redis.StringCmd // the layout record
	list    *redis.MapStringStringCmd
	idle    *redis.MapStringStringCmd   // the claims
	cursors map[int][]*redis.SliceCmd   // by shard that is asked about, then by stream
	cells   []*redis.MapStringStringCmd // by hash
}

func (r *replies) queueCursors(ctx context.Context, p redis.Pipeliner) {
	r.record = p.Get(ctx, r.keys.layout())
	r.idle = p.HGetAll(ctx, r.keys.idle())
	for shard := range r.cursors {
		cmds := make([]*redis.SliceCmd, len(r.dir.streams))
		for i, stream := range r.dir.streams {
			cmds[i] = p.HMGet(ctx, r.keys.cursor(shard, stream), cursorFields...)
		}
		r.cursors[shard] = cmds
	}
	// The list comes after whatever has an as_of: a new stream is listed before any as_of claims its hits.
	r.list = p.HGetAll(ctx, r.keys.streams())
}

func (r *replies) queueHashes(ctx context.Context, p redis.Pipeliner) {
	for i, h := range r.hashes.all {
		r.cells[i] = p.HGetAll(ctx, r.keys.hash(h))
	}
}

func (r *replies) parse() (out snapshot, err error) {
	out = snapshot{
		dir: r.dir, hashes: r.hashes, cells: make([][]storedCell, len(r.cells)),
		shards: make([]*progress, r.dir.layout.Shards), cursors: r.cursors,
	}
	if out.claims, err = r.keys.parseClaims(r.dir.listed, r.idle.Val()); err != nil {
		return snapshot{}, err
	}
	for shard, cursors := range r.cursors {
		if out.shards[shard], err = parseProgress(r.dir, cursors, out.claims); err != nil {
			return snapshot{}, err
		}
	}
	for i, reply := range r.cells {
		if out.cells[i], err = parseCells(reply); err != nil {
			return snapshot{}, err
		}
	}
	return out, nil
}

func parseCells(reply *redis.MapStringStringCmd) ([]storedCell, error) {
	cells := make([]storedCell, 0, len(reply.Val()))
	for field, value := range reply.Val() {
		f, errField := strconv.ParseInt(field, 10, 64)
		n, errCount := strconv.ParseInt(value, 10, 64)
		if err := errors.Join(errField, errCount); err != nil || n < 0 {
			return nil, &ForeignError{reply.Args()[1].(string), fmt.Errorf("its field %q with the value %q is not a cell", field, value)}
		}
		cells = append(cells, storedCell{f, n})
	}
	return cells, nil
}

// blame adds to an error which question reads the foreign key, if that is a hash of one.
func (r *Reader) blame(plans []Plan, err error) error {
	var foreign *ForeignError
	if !errors.As(err, &foreign) {
		return err
	}
	for i := range plans {
		for h := range plans[i].hashes {
			if r.store.keys.hash(h) == foreign.Key {
				return &QuestionError{i, err}
			}
		}
	}
	return err
}

// affordable returns how many counters MaxCells allows to be read with this plan: what a
// counter costs does not depend on its name. The error is a *TooMuchError if these
// are fewer than least.
func (r *Reader) affordable(plan Plan, least int) (int, error) {
	if r.MaxCells == 0 {
		return math.MaxInt, nil
	}
	each := hashesOf([]Plan{plan}).room()
	if need := each * int64(least); need > r.MaxCells {
		return 0, &TooMuchError{What: "cells", Count: need, Max: r.MaxCells}
	}
	return int(r.MaxCells / each), nil
}
