package commit

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/internal/window/schema"
)

// A log gets its header and expiry with the first hits that a writer adds to it. If it is about to expire,
// the transaction also sets the expiry after the hits: EXEC may run past it, and APPEND then recreates the
// log.
func TestLogsGetTheirExpiry(t *testing.T) {
	t.Parallel()
	layout := window.Layout{Tiers: mustParse(t, window.DefaultTiers), Shards: 1, Sparse: true}
	const at, hash = int64(1_763_000_000_000), 7
	tier := layout.NamesTier()
	deadline := tier.Deadline(tier.EpochAt(at), hash)
	for what, c := range map[string]struct {
		left            int64 // seconds until it expires
		known           bool
		logs, set, sent int
	}{
		"new":                    {left: 1000, logs: 1, sent: 1},
		"known":                  {left: 1000, known: true, logs: 1},
		"known, about to expire": {left: window.TrustSeconds - 1, known: true, logs: 1, set: 1, sent: 1},
		"new, about to expire":   {left: 1, logs: 1, set: 1, sent: 1},
		"expired":                {left: 0},
	} {
		batch := window.NewBatch(layout)
		batch.Add([]byte("a"), hash, at, at, 1)
		s := batch.Shard(0)
		s.Place(100, func(uint64, int64) int { return 0 })
		var known expiryMemory
		if c.known {
			known.add(hashID(hash, len(layout.Tiers), tier.EpochAt(at)), 0)
		}
		var changes changes
		changes.compute(s, 0, schema.Keys{Namespace: "ns"}, &known, &registerMemory{}, deadline-c.left)
		require.Len(t, changes.logs, c.logs, what)
		require.Empty(t, changes.increments, what)
		require.Len(t, changes.set, c.set, what)
		require.Len(t, changes.trusted, c.logs-c.set, what)
		sent := 0
		for _, l := range changes.logs {
			if l.create {
				sent++
			}
			require.Equal(t, string(window.AppendLogCell(nil, tier.CellAt(at)-tier.EpochAt(at)*tier.CellsPerEpoch(), 1)), l.text)
		}
		require.Equal(t, c.sent, sent, what)
		require.Len(t, changes.names, c.sent, what)
	}
}
