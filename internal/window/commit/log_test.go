package commit

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/internal/window/schema"
)

// A log gets its header and expiry with the first hits that a writer adds to it, and its counter is listed
// then. A log that has expired takes no hits. A key that is listed but may hold no log gets the header again.
func TestLogsOfABatch(t *testing.T) {
	t.Parallel()
	layout := window.Layout{Tiers: mustParse(t, window.DefaultTiers), Shards: 1}
	const at, hash = int64(1_763_000_000_000), 7
	tier := layout.NamesTier()
	epoch := tier.EpochAt(at)
	deadline := tier.Deadline(epoch, hash)
	for what, c := range map[string]struct {
		left   int64 // seconds until it expires
		sizes  []int64
		logs   int
		size   int
		listed int
	}{
		"new":                  {left: 1000, logs: 1, listed: 1},
		"known":                {left: 1000, sizes: []int64{40}, logs: 1, size: 40},
		"suspect":              {left: 1000, sizes: []int64{40, 0}, logs: 1},
		"new, about to expire": {left: 1, logs: 1, listed: 1},
		"expired":              {left: 0},
	} {
		batch := window.NewBatch(layout)
		batch.Add([]byte("a"), hash, at, at, 1)
		s := batch.Shard(0)
		s.Place(100, 0, func(uint64, int64) int { return 0 })
		var known sizeMemory
		for _, size := range c.sizes {
			known.add(logID(hash, epoch), logSizeOf(size, false))
		}
		var changes changes
		changes.compute(s, 0, schema.Keys{Namespace: "ns"}, &known, &registerMemory{}, deadline-c.left)
		require.Len(t, changes.logs, c.logs, what)
		require.Empty(t, changes.increments, what)
		require.Len(t, changes.names, c.listed, what)
		for _, l := range changes.logs {
			require.Equal(t, c.size, l.size.bytes(), what)
			require.Equal(t, string(window.AppendLogCell(nil, tier.CellAt(at)-epoch*tier.CellsPerEpoch(), 1)), l.text)
		}
	}
}
