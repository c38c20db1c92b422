package window

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestSummariesOfAllShardsListEnough(t *testing.T) {
	t.Parallel()
	for shards, want := range map[int]int{1: 1000, 3: 334, 16: 63, 100: 16, 4096: 16} {
		require.Equal(t, want, Layout{Shards: shards}.SummarySize(), "%d shards", shards)
	}
}

// Whatever a hit that an answer can have, its segment is among those that are
// read, is alive, and dies before the hash.
func TestSegmentsCoverARange(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		tiers, err := ParseTiers(rapid.SampledFrom([]string{
			DefaultTiers, "1s/4s,4s/60s", "2s/60s", "3s/6s,4s/8s", "7m/161m,1h/2d", "1s/2h,1m/2d,1h/92d",
		}).Draw(t, "tiers"))
		require.NoError(t, err)
		l := Layout{Tiers: tiers.Cut(genCut.Draw(t, "cut")), Shards: 16}
		longest := l.Tiers[len(l.Tiers)-1].Window.Milliseconds()
		now := rapid.Int64Range(1_763_000_000_000, 1_764_000_000_000).Draw(t, "now")
		from := now - rapid.Int64Range(1, longest).Draw(t, "from")
		to := rapid.Int64Range(from+1, now).Draw(t, "to")
		ago := rapid.Int64Range(0, l.Tiers[len(l.Tiers)-1].Grace()/2).Draw(t, "ended ago")
		from, to = from-ago, to-ago
		p, err := l.Plan("", Range{from, to}, now)
		require.NoError(t, err)
		tier, first, last, _ := l.Segments(p)
		level := l.Tiers[tier]
		at := rapid.Int64Range(from, to-1).Draw(t, "at")
		number := level.SegmentOf(level.CellAt(at))
		if number < first || number > last {
			t.Fatalf("segment %d of a hit is not among %d to %d", number, first, last)
		}
		deadline := level.SegmentDeadline(number)
		if deadline*1000 <= now {
			t.Fatalf("the summary of a hit at %d expires at %d, before now", at, deadline)
		}
		if most := (level.CellsPerEpoch()+1)/2 + 1; last-first+1 > most {
			t.Fatalf("%d segments for hashes of %d cells", last-first+1, level.CellsPerEpoch())
		}
		if hash := level.Deadline(level.EpochAt(at), 0); hash < deadline && segmentCells(level) == 1 {
			t.Fatalf("the hash expires at %d, the summary at %d", hash, deadline)
		}
	})
}
