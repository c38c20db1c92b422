package window

import (
	"fmt"

	"github.com/cespare/xxhash/v2"
)

// Layout is how a namespace maps a counter and a moment to Redis: its tiers and
// its number of shards. It is fixed for the life of a namespace.
type Layout struct {
	Tiers  Tiers
	Shards int
}

// MaxShards bounds SHARDS: each stream has a cursor on every shard, and a worker moves it every second if there are hits.
const MaxShards = 4096

// validate checks what ParseTiers does not: the number of shards.
func (l Layout) validate() error {
	if len(l.Tiers) == 0 {
		return fmt.Errorf("no tiers")
	}
	if l.Shards < 1 || l.Shards > MaxShards {
		return fmt.Errorf("%d shards: a whole number from 1 to %d is allowed", l.Shards, MaxShards)
	}
	return nil
}

// HashCounter is the hash that places a counter: xxhash64 of its name.
func HashCounter(name []byte) uint64 { return xxhash.Sum64(name) }

// ShardOf returns the shard of a counter with this hash.
func (l Layout) ShardOf(counterHash uint64) int { return int(counterHash % uint64(l.Shards)) }

// Holds reports whether any tier still held the time of a hit when it was
// stored; both are Unix milliseconds. The result depends only on the hit, so a replay
// decides the same.
func (l Layout) Holds(counterHash uint64, at, stored int64) bool {
	return l.Tiers[len(l.Tiers)-1].holds(counterHash, at, stored)
}

func (t Tier) holds(counterHash uint64, at, stored int64) bool {
	return t.deadline(t.epochAt(at), counterHash)*1000 > stored
}
