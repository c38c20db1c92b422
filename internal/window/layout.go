package window

import (
	"encoding/json"
	"errors"
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

// ErrBadLayout means that this program cannot read the layout record: another version of
// it, or another program, wrote the record.
var ErrBadLayout = errors.New("layout record")

// layoutRecord is what Redis keeps about a namespace's layout.
type layoutRecord struct {
	Layout
	id string // see Store.ID
}

// layoutJSON is the record's text.
type layoutJSON struct {
	Version int    `json:"version"`
	Tiers   string `json:"tiers"`
	Shards  int    `json:"shards"`
	Hash    string `json:"hash"` // of counters
	ID      string `json:"id"`
	// EpochCells is the most cells that a hash spans: a program with another EpochCells goes on with it.
	EpochCells int64 `json:"epoch_cells"`
}

const layoutVersion, layoutHash = 1, "xxhash64"

func (r layoutRecord) encode() string {
	out, err := json.Marshal(layoutJSON{layoutVersion, r.Tiers.String(), r.Shards, layoutHash, r.id, r.Tiers.epochCells()})
	if err != nil {
		panic(err) // strings and integers always encode
	}
	return string(out)
}

// parseLayoutRecord reads what encode wrote. Its errors are ErrBadLayout.
func parseLayoutRecord(text string) (layoutRecord, error) {
	var found layoutJSON
	if err := json.Unmarshal([]byte(text), &found); err != nil {
		return layoutRecord{}, fmt.Errorf("%w: %w", ErrBadLayout, err)
	}
	if found.Version != layoutVersion || found.Hash != layoutHash {
		return layoutRecord{}, fmt.Errorf("%w has version %d and hash %q, and this program reads version %d and %s: run the release of Tallyroll that made the namespace, or set another TALLYROLL_NAMESPACE",
			ErrBadLayout, found.Version, found.Hash, layoutVersion, layoutHash)
	}
	if found.EpochCells < 1 {
		return layoutRecord{}, fmt.Errorf("%w has %d cells in an epoch", ErrBadLayout, found.EpochCells)
	}
	tiers, err := ParseTiers(found.Tiers)
	if err != nil {
		return layoutRecord{}, fmt.Errorf("%w: %w", ErrBadLayout, err)
	}
	layout := Layout{Tiers: tiers.Cut(found.EpochCells), Shards: found.Shards}
	if err := layout.validate(); err != nil {
		return layoutRecord{}, fmt.Errorf("%w: %w", ErrBadLayout, err)
	}
	return layoutRecord{layout, found.ID}, nil
}
