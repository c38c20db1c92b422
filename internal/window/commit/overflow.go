package commit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/window"
	"tallyroll/internal/window/internal/cluster"
)

// newNames are counters under a bound that this writer does not know to be listed in a set of names.
type newNames struct {
	bound    window.NameBound
	set      int64
	counters []int // of the batch
	listed   *redis.IntCmd
}

// unlistedError means that a prefix must be listed before names overflow (see schema.Overflows). The attempt
// has written nothing. It keeps a connection, so it cannot wait for another one.
type unlistedError struct {
	bound window.NameBound
	now   time.Time
}

func (e *unlistedError) Error() string {
	return fmt.Sprintf("the overflow of %q is not listed", e.bound.Prefix)
}

// moveOverflow moves the hits of new names without room to the overflow counter of the shard, once for all
// attempts: it decides again only after one that Redis had no memory for, or that met a conflict. A
// counter that is listed stays, also if only the set before has it: otherwise names that came with a new set
// would take its place.
//
// Counters that the writer knows cost nothing. If some are new to it, it asks how many are listed; if not all
// have room, which of them are.
func (w *Writer) moveOverflow(ctx context.Context, tx *cluster.WatchedTx, batch *window.ShardBatch, clock time.Time,
	out *Commit) error {
	if batch.Bounded || len(w.store.Bounds) == 0 && w.store.NamesMemory == 0 {
		return nil
	}
	unknown := w.newNames(batch)
	if len(unknown) > 0 {
		full, err := w.countNames(ctx, tx, unknown, out)
		if err != nil {
			return err
		}
		for i := range unknown {
			if err := w.moveNames(ctx, tx, batch, &unknown[i], full, clock, out); err != nil {
				return err
			}
		}
	}
	batch.Bounded = true
	return nil
}

func (w *Writer) newNames(batch *window.ShardBatch) (out []newNames) {
	bounds := w.store.Bounds
	all := func(b window.NameBound) bool { return b.Prefix == "" }
	if w.store.NamesMemory > 0 && !slices.ContainsFunc(bounds, all) {
		bounds = append(slices.Clip(bounds), window.NameBound{Max: math.MaxInt32}) // memory bounds all names
	}
	for i := range batch.Counters {
		c := &batch.Counters[i]
		epoch, ok := batch.ListedEpoch(c)
		if !ok {
			continue
		}
		if _, listed := w.logs.sizes.size(logID(c.CounterHash, epoch)); listed {
			continue
		}
		bound, ok := bounds.Of(w.layout, c)
		if !ok {
			continue
		}
		set := batch.NamesTier.NamesOf(epoch)
		at := slices.IndexFunc(out, func(n newNames) bool { return n.bound == bound && n.set == set })
		if at < 0 {
			at, out = len(out), append(out, newNames{bound: bound, set: set})
		}
		out[at].counters = append(out[at].counters, i)
	}
	return out
}

// Several streams that add many names at once could pass a bound together. So a transaction that adds more
// than a freeShare of it meets a conflict if another one has added any since the count, but not for ever.
const (
	freeShare     = 200
	freeConflicts = 20
)

// countNames asks how many names each set lists under the bounds, and whether so much of Redis's memory is
// in use that no new name gets any: known counters, limits and cursors need the rest. It asks with each part
// that has new names, because many can come within a second.
func (w *Writer) countNames(ctx context.Context, tx *cluster.WatchedTx, unknown []newNames, out *Commit) (full bool,
	err error) {
	var info *redis.StringCmd
	_, _ = tx.Pipelined(ctx, func(p redis.Pipeliner) error { // the errors are those of the single commands
		for i := range unknown {
			u := &unknown[i]
			low, high := "["+u.bound.Prefix, "("+u.bound.Prefix+"\xff" // no UTF-8 has that byte
			set := w.store.Keys.Names(w.shard, w.layout.NamesTier(), u.set)
			if len(u.counters) > u.bound.PerShard(w.layout)/freeShare && out.Conflicts < freeConflicts {
				p.Do(ctx, "watch", set)
			}
			u.listed = p.ZLexCount(ctx, set, low, high)
		}
		if w.store.NamesMemory > 0 {
			info = p.Info(ctx, "memory")
		}
		return nil
	})
	for i := range unknown {
		if err := unknown[i].listed.Err(); err != nil {
			return false, err
		}
	}
	if info == nil {
		return false, nil
	}
	text, err := info.Result()
	if _, refused := errors.AsType[redis.Error](err); refused { // NOPERM, or a service that has no such command
		out.MemoryHidden, err = err, nil
	}
	return isNearlyFull(text, int64(w.store.NamesMemory)), err
}

// isNearlyFull reports whether the reply to INFO says that so many percent of maxmemory are in use.
func isNearlyFull(info string, percent int64) bool {
	number := func(name string) int64 {
		_, rest, _ := strings.Cut(info, "\n"+name+":")
		rest, _, _ = strings.Cut(rest, "\r")
		n, _ := strconv.ParseInt(rest, 10, 64)
		return n
	}
	most := number("maxmemory")
	return most > 0 && number("used_memory") >= most/100*percent
}

// moveNames moves the hits of the counters without room that are not listed.
func (w *Writer) moveNames(ctx context.Context, tx *cluster.WatchedTx, batch *window.ShardBatch, u *newNames, full bool,
	clock time.Time, out *Commit) error {
	room := int64(u.bound.PerShard(w.layout)) - u.listed.Val()
	if full {
		room = 0
	}
	if int64(len(u.counters)) <= room {
		return nil
	}
	listed, err := w.areListed(ctx, tx, batch, u)
	if err != nil {
		return err
	}
	var moved []int
	for i, at := range u.counters {
		switch {
		case listed[i]:
		case room > 0:
			room--
		default:
			moved = append(moved, at)
		}
	}
	if len(moved) == 0 {
		return nil
	}
	if !w.store.Overflows.IsListed(u.bound, clock) {
		return &unlistedError{u.bound, clock}
	}
	batch.MoveHits(moved, w.layout.Overflow(u.bound.Prefix, w.shard))
	if out.Overflowed == nil {
		out.Overflowed = make(map[string]int)
	}
	out.Overflowed[u.bound.Prefix] += len(moved)
	return nil
}

// areListed reports which counters are in their set of names, or in the one before.
func (w *Writer) areListed(ctx context.Context, tx *cluster.WatchedTx, batch *window.ShardBatch,
	u *newNames) ([]bool, error) {
	scores := make([][2]*redis.FloatCmd, len(u.counters))
	_, err := tx.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, at := range u.counters {
			for k := range scores[i] {
				set := w.store.Keys.Names(w.shard, w.layout.NamesTier(), u.set-int64(k))
				scores[i][k] = p.ZScore(ctx, set, batch.Counters[at].Name)
			}
		}
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, err
	}
	out := make([]bool, len(scores))
	for i := range scores {
		for _, s := range scores[i] {
			if err := s.Err(); err != nil && !errors.Is(err, redis.Nil) {
				return nil, err
			}
			out[i] = out[i] || s.Err() == nil
		}
	}
	return out, nil
}
