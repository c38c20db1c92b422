package window

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestLevels(t *testing.T) {
	t.Parallel()
	for tiers, want := range map[string]string{
		DefaultTiers:         "15m 1h",
		"1s/1m,1m/1h":        "1m",
		"1m/2h":              "1m",
		"1s/4m,1m/90m,1h/9d": "1m 1h",
	} {
		l, got := Layout{Tiers: mustTiers(t, tiers), Shards: 16}, ""
		for i, tier := range l.Tiers {
			if l.isLevel(i) {
				got += FormatDuration(tier.Cell) + " "
			}
		}
		if got != want+" " {
			t.Errorf("levels of %s: %s; want %s", tiers, got, want)
		}
	}
	for shards, want := range map[int]int{1: 1000, 3: 334, 16: 63, 100: 16, 4096: 16} {
		if got := (Layout{Shards: shards}).summarySize(); got != want {
			t.Errorf("summaries of %d shards list %d counters; want %d", shards, got, want)
		}
	}
}

func TestTheLevelOfAWindow(t *testing.T) {
	t.Parallel()
	const now = 1_763_683_200_000
	for _, c := range []struct {
		tiers, window, cell string
		ago                 time.Duration
	}{
		{DefaultTiers, "1s", "15m", 0},
		{DefaultTiers, "1h", "15m", 0},
		{DefaultTiers, "1h", "1h", 25 * time.Hour}, // the finer level has nothing of then
		{DefaultTiers, "23h", "15m", 0},
		{DefaultTiers, "1d", "1h", 0},
		{DefaultTiers, "32d", "1h", 0},
		{"1m/2h,2h/9d", "119m", "2h", 0}, // 120 segments of a minute are too many
		{"1m/4h,2h/9d", "3h", "1m", 0},   // and here a segment has two of them
		{"1h/10d", "10d", "1h", 0},       // and here there is no coarser level
	} {
		l := Layout{Tiers: mustTiers(t, c.tiers), Shards: 16}
		window, err := ParseDuration(c.window)
		require.NoError(t, err)
		to := now - c.ago.Milliseconds()
		p, err := l.Plan("", Range{to - window.Milliseconds(), to}, now)
		require.NoError(t, err)
		tier, first, last, _ := l.segments(p)
		if got := FormatDuration(l.Tiers[tier].Cell); got != c.cell || last-first > int64(window/l.Tiers[tier].Cell)+1 {
			t.Errorf("%s of %s: %d segments of %s; want %s", c.window, c.tiers, last-first+1, got, c.cell)
		}
	}
}

// Whatever a hit that an answer can have, its segment is among those that are
// read, is alive, and dies before the hash.
func TestSegmentsCoverARange(t *testing.T) {
	t.Parallel()
	outer := t
	rapid.Check(t, func(t *rapid.T) {
		tiers := mustTiers(outer, rapid.SampledFrom([]string{DefaultTiers, "1s/4s,4s/60s", "2s/60s", "3s/6s,4s/8s", "7m/161m,1h/2d", "1s/2h,1m/2d,1h/92d"}).Draw(t, "tiers"))
		l := Layout{Tiers: tiers.Cut(genCut.Draw(t, "cut")), Shards: 16}
		longest := l.Tiers[len(l.Tiers)-1].Window.Milliseconds()
		now := rapid.Int64Range(1_763_000_000_000, 1_764_000_000_000).Draw(t, "now")
		from := now - rapid.Int64Range(1, longest).Draw(t, "from")
		to := rapid.Int64Range(from+1, now).Draw(t, "to")
		p, err := l.Plan("", Range{from, to}, now)
		require.NoError(t, err)
		tier, first, last, _ := l.segments(p)
		level := l.Tiers[tier]
		at := rapid.Int64Range(from, to-1).Draw(t, "at")
		number := level.segmentOf(level.cellAt(at))
		if number < first || number > last {
			t.Fatalf("segment %d of a hit is not among %d to %d", number, first, last)
		}
		deadline := level.segmentDeadline(number)
		if deadline*1000 <= now {
			t.Fatalf("the summary of a hit at %d expires at %d, before now", at, deadline)
		}
		if most := (level.cellsPerEpoch()+1)/2 + 1; last-first+1 > most {
			t.Fatalf("%d segments for hashes of %d cells", last-first+1, level.cellsPerEpoch())
		}
		if hash := level.deadline(level.epochAt(at), 0); hash < deadline && level.segmentCells() == 1 {
			t.Fatalf("the hash expires at %d, the summary at %d", hash, deadline)
		}
	})
}
