package read

import (
	"context"
	"iter"
	"strings"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/window"
	"tallyroll/internal/window/internal/cluster"
	"tallyroll/internal/window/schema"
)

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

func (s *keySet) reply(key string) cluster.Reply {
	return cluster.Reply{Key: key, Text: string(s.replies[s.at[key]].Val())}
}

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

// keySets are the keys that a question reads, in addition to the layout record and the list of streams.
type keySets struct {
	cursors    keySet
	hashes     [hashKinds]keySet
	again      []*redis.RawCmd // how each log begins, after the hashes
	unions     keySet          // of unique cells: the keys of each, see unionKey
	unionCells int64           // how many cells the unions have together
}

// hashKind is how a hash is read.
type hashKind int

const (
	wholeHash hashKind = iota
	hashSum            // the sum of its cells will do
	sparseLog
	hashKinds
)

var hashCommands = [hashKinds]string{"hgetall", "hvals", "get"}

func kindOf(h window.CellHash) hashKind {
	switch {
	case h.Tier.Sparse:
		return sparseLog
	case h.Sum:
		return hashSum
	}
	return wholeHash
}

// logBeginning is how much of a log is read again: its header and a cell, which a fold does not leave there.
const logBeginning = 24

// queueHashes queues the logs, then the hashes, and then how the logs begin. If a log begins otherwise by
// then, a commit has moved some of its hits into hashes.
func (w *keySets) queueHashes(ctx context.Context, p redis.Pipeliner) {
	logs := &w.hashes[sparseLog]
	logs.queue(ctx, p, hashCommands[sparseLog])
	for kind := range sparseLog {
		w.hashes[kind].queue(ctx, p, hashCommands[kind])
	}
	w.again = make([]*redis.RawCmd, len(logs.keys))
	for i, key := range logs.keys {
		w.again[i] = redis.NewRawCmd(ctx, "getrange", key, 0, logBeginning-1)
		_ = p.BatchProcess(ctx, w.again[i])
	}
}

// checkLog returns ErrStale if a log was folded between its two reads.
func (w *keySets) checkLog(key string) error {
	text, _, err := w.hashes[sparseLog].reply(key).Value()
	if err != nil || text == "" {
		return err
	}
	again, _, err := cluster.Reply{Key: key, Text: string(w.again[w.hashes[sparseLog].at[key]].Val())}.Value()
	if err == nil && !strings.HasPrefix(again, text[:min(len(text), logBeginning)]) {
		err = ErrStale
	}
	return err
}

func (w *keySets) size() int {
	n := int(w.unionCells)
	for _, set := range w.hashes {
		n += len(set.keys)
	}
	return n
}

// addUnion returns the index of a union, or -1 if it is empty.
func (w *keySets) addUnion(key string, cells int) int {
	if cells == 0 {
		return -1
	}
	index, added := w.unions.add(key)
	if added {
		w.unionCells += int64(cells)
	}
	return index
}

// readPlan is what plans need of Redis, and where each plan finds it.
type readPlan struct {
	keySets
	shards []int    // that the plans are about, in the order of the cursors
	at     []hashAt // of each hash of each plan, in the order of hashesOf
	counts []int    // for each union of each plan: its index among the unions, or -1 if it is empty
	room   int64    // how many cells the hashes can hold
}

// hashAt is a hash's place in keySets.hashes. The index is -1 if the hash is not read.
type hashAt struct {
	kind  hashKind
	index int
}

func planReads(k schema.Keys, dir *schema.Directory, plans []window.Plan) (out readPlan) {
	asked := make([]bool, dir.Layout.Shards)
	for i := range plans {
		p := &plans[i]
		for shard, end := shardsOf(p, dir.Layout); shard < end; shard++ {
			if asked[shard] {
				continue
			}
			asked[shard] = true
			out.shards = append(out.shards, shard)
			for _, stream := range dir.Streams {
				out.cursors.add(k.Cursor(shard, stream))
			}
		}
		for h := range hashesOf(p, dir.Layout) {
			kind := kindOf(h)
			if kind == sparseLog && h.Counter == window.AllHits { // which has none
				out.at = append(out.at, hashAt{kind, -1})
				continue
			}
			index, added := out.hashes[kind].add(k.Hash(h))
			if added {
				out.room += h.Tier.Capacity()
			}
			out.at = append(out.at, hashAt{kind, index})
		}
		for _, u := range p.Unions {
			out.counts = append(out.counts, out.addUnion(unionKey(u, k, p), len(u)))
		}
	}
	return out
}

// shardsOf returns the first shard of a plan, and the end of its shards.
func shardsOf(p *window.Plan, l window.Layout) (first, end int) {
	if p.Shard == window.AllShards {
		return 0, l.Shards
	}
	return p.Shard, p.Shard + 1
}

// hashesOf yields each of Plan.Hashes of each of the plan's shards in turn.
func hashesOf(p *window.Plan, l window.Layout) iter.Seq[window.CellHash] {
	first, end := shardsOf(p, l)
	return func(yield func(window.CellHash) bool) {
		for h := range p.Hashes {
			for h.Shard = first; h.Shard < end; h.Shard++ {
				if !yield(h) {
					return
				}
			}
		}
	}
}

func unionKey(u window.Union, k schema.Keys, p *window.Plan) string {
	var out strings.Builder
	for i, c := range u {
		if i > 0 {
			out.WriteString(keySeparator)
		}
		out.WriteString(k.Unique(p.Shard, c.Tier, c.Number, p.Counter))
	}
	return out.String()
}

// keySeparator separates the keys of a union. No name has control characters.
const keySeparator = "\n"

// queueUnions queues a PFCOUNT for each union. Its keys are of one shard, and so of one slot.
func (s *keySet) queueUnions(ctx context.Context, p redis.Pipeliner) {
	s.replies = make([]*redis.RawCmd, len(s.keys))
	for i, u := range s.keys {
		args := []any{"pfcount"}
		for key := range strings.SplitSeq(u, keySeparator) {
			args = append(args, key)
		}
		s.replies[i] = redis.NewRawCmd(ctx, args...)
		_ = p.BatchProcess(ctx, s.replies[i])
	}
}

// countsKey reports whether a key is that of one of the plan's unique cells.
func countsKey(p *window.Plan, k schema.Keys, key string) bool {
	for _, u := range p.Unions {
		for _, c := range u {
			if k.Unique(p.Shard, c.Tier, c.Number, p.Counter) == key {
				return true
			}
		}
	}
	return false
}
