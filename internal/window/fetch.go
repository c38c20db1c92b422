package window

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/redis/go-redis/v9"
)

// fetch plans for a moment, and reads once what the plans need. The error is ErrStale if they turn out to be
// old. It reads the cursors before the hashes, so the counts can only be newer than AsOf, and the clock last:
// what had not expired by then was there.
func (r *Reader) fetch(ctx context.Context, dir *Directory, at instant, plan planner) (snapshot, error) {
	plans, err := plan(dir.Layout, at.milli)
	if err != nil {
		return snapshot{}, err
	}
	need := needOf(r.Store.Keys, dir, plans)
	if r.MaxCells > 0 && need.room > r.MaxCells {
		return snapshot{}, &TooMuchError{What: "cells", Count: need.room, Max: r.MaxCells}
	}
	if r.MaxUniqueCells > 0 && need.unionCells > r.MaxUniqueCells {
		return snapshot{}, &TooMuchError{What: UniqueCells, Count: need.unionCells, Max: r.MaxUniqueCells}
	}
	trip, err := r.trips.ask(ctx, need.wanted)
	if err != nil {
		return snapshot{}, fmt.Errorf("read %d hashes and cells of uniques: %w", need.size(), err)
	}
	holds := r.clocks.learn(at, trip.sent, trip.received, trip.times, graceOf(plans))
	same, err := dir.Matches(trip.record, trip.list)
	if err != nil {
		r.forget(dir)
		return snapshot{}, err
	}
	if !same {
		r.forget(dir)
		return snapshot{}, ErrStale
	}
	if !holds {
		return snapshot{}, ErrStale
	}
	out := snapshot{keys: r.Store.Keys, dir: dir, plans: plans, at: at, clock: trip.times.Latest().UnixMilli()}
	if err := out.parse(need, trip); err != nil {
		return snapshot{}, r.blame(plans, r.nameForeign(ctx, err))
	}
	return out, out.settle(plan)
}

// blame adds to an error which question reads the foreign key, if one does.
func (r *Reader) blame(plans []Plan, err error) error {
	var foreign *ForeignError
	if !errors.As(err, &foreign) {
		return err
	}
	for i := range plans {
		for h := range plans[i].Hashes {
			if r.Store.Keys.Hash(h) == foreign.Key {
				return &QuestionError{i, err}
			}
		}
		if countsKey(&plans[i], r.Store.Keys, foreign.Key) {
			return &QuestionError{i, err}
		}
	}
	return err
}

// affordable returns how many counters MaxCells allows to be read with all of these plans; a counter's cost
// does not depend on its name. The error is a *TooMuchError if these are fewer than least.
func (r *Reader) affordable(least int, plans ...Plan) (int, error) {
	if r.MaxCells == 0 {
		return math.MaxInt, nil
	}
	var each int64
	for i := range plans {
		each += plans[i].Capacity()
	}
	if need := each * int64(least); need > r.MaxCells {
		return 0, &TooMuchError{What: "cells", Count: need, Max: r.MaxCells}
	}
	return int(r.MaxCells / each), nil
}

// keySet is a set of keys in the order in which they were added, and the replies about them.
type keySet struct {
	keys    []string
	at      map[string]int // index in keys
	replies []*redis.RawCmd
}

func (s *keySet) queue(ctx context.Context, p redis.Pipeliner, name string, more ...any) {
	s.replies = make([]*redis.RawCmd, len(s.keys))
	for i, key := range s.keys {
		s.replies[i] = redis.NewRawCmd(ctx, append([]any{name, key}, more...)...)
		_ = p.BatchProcess(ctx, s.replies[i])
	}
}

func (s *keySet) reply(key string) Reply { return Reply{key, string(s.replies[s.at[key]].Val())} }

func (s *keySet) add(key string) (index int, added bool) {
	if i, ok := s.at[key]; ok {
		return i, false
	}
	if s.at == nil {
		s.at = make(map[string]int)
	}
	s.at[key] = len(s.keys)
	s.keys = append(s.keys, key)
	return len(s.keys) - 1, true
}

func (s *keySet) addAll(keys []string) {
	for _, key := range keys {
		s.add(key)
	}
}

// wanted are the keys that a question reads, in addition to the layout record and the list of streams.
type wanted struct {
	cursors, hashes keySet
	sums            keySet // hashes of which the sum will do
	unions          keySet // of unique cells: the keys of each, see union.key
	unionCells      int64  // how many cells the unions have together
}

func (w *wanted) size() int { return len(w.hashes.keys) + len(w.sums.keys) + int(w.unionCells) }

// addUnion returns the index of a union, or -1 if it is empty.
func (w *wanted) addUnion(key string, cells int) int {
	if cells == 0 {
		return -1
	}
	index, added := w.unions.add(key)
	if added {
		w.unionCells += int64(cells)
	}
	return index
}

// need is what plans need of Redis, and where each plan finds it.
type need struct {
	wanted
	shards []int // that the plans are about, in the order of the cursors
	at     []int // for each hash of each plan, in the order of Plan.hashes: its index among the hashes, or ^index among the sums
	counts []int // for each union of each plan: its index among the unions, or -1 if it is empty
	room   int64 // how many cells the hashes can hold
}

func needOf(k Keys, dir *Directory, plans []Plan) (out need) {
	asked := make([]bool, dir.Layout.Shards)
	for i := range plans {
		p := &plans[i]
		if !asked[p.Shard] {
			asked[p.Shard] = true
			out.shards = append(out.shards, p.Shard)
			for _, stream := range dir.Streams {
				out.cursors.add(k.Cursor(p.Shard, stream))
			}
		}
		for h := range p.Hashes {
			set := &out.hashes
			if h.Sum {
				set = &out.sums
			}
			index, added := set.add(k.Hash(h))
			if added {
				out.room += h.Tier.CellsPerEpoch()
			}
			if h.Sum {
				index = ^index
			}
			out.at = append(out.at, index)
		}
		for _, u := range p.Unions {
			out.counts = append(out.counts, out.addUnion(unionKey(u, k, p), len(u)))
		}
	}
	return out
}
