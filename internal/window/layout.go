package window

import (
	"fmt"

	"github.com/cespare/xxhash/v2"
)

// Layout maps a counter and a moment to Redis: the tiers, which Retier changes, and the unique tiers and the
// number of shards, which are fixed for the life of a namespace.
type Layout struct {
	Tiers       Tiers
	UniqueTiers Tiers // as ParseUniqueTiers returns them; empty if unique values are not counted
	Shards      int
}

// MaxShards bounds SHARDS: each stream has a cursor per shard, which moves every second if there are hits.
const MaxShards = 4096

// Validate checks what ParseTiers does not: the number of shards.
func ValidateLayout(l Layout) error {
	if len(l.Tiers) == 0 {
		return fmt.Errorf("no tiers")
	}
	if l.Shards < 1 || l.Shards > MaxShards {
		return fmt.Errorf("%d shards: a whole number from 1 to %d is allowed", l.Shards, MaxShards)
	}
	return nil
}

// AllHits, in place of a counter's name, stands for the sum of all hits: no name is empty. Each shard has the
// sum of its hits in cells like a counter's, written with those of its counters. An erasure leaves it.
const AllHits = ""

// HashCounter returns the hash that places a counter: xxhash64 of its name. That of AllHits is 0, which means
// no jitter: a hash of its cells expires before those of counters, and so lacks no hit that one of them has.
func HashCounter(name []byte) uint64 {
	if len(name) == 0 {
		return 0
	}
	return xxhash.Sum64(name)
}

// AllShards is the shard of AllHits in plans.
const AllShards = -1

func (l Layout) shardOf(counter string) int {
	if counter == AllHits {
		return AllShards
	}
	return l.ShardOf(HashCounter([]byte(counter)))
}

// ShardOf returns the shard of a counter with this hash.
func (l Layout) ShardOf(counterHash uint64) int { return int(counterHash % uint64(l.Shards)) }

// Holds reports whether any tier still held a hit's time (both Unix milliseconds) when it was stored. The
// result depends only on the hit, so a replay decides the same.
func (l Layout) Holds(counterHash uint64, at, stored int64) bool {
	return holdsWhenStored(l.Tiers[len(l.Tiers)-1], counterHash, at, stored)
}

func holdsWhenStored(t Tier, counterHash uint64, at, stored int64) bool {
	return t.Deadline(t.EpochAt(at), counterHash)*1000 > stored
}
