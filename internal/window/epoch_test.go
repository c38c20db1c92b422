package window

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// genTier draws a tier whose hashes span two windows or less: sometimes many hashes make up a window.
var genTier = rapid.Custom(func(t *rapid.T) Tier {
	cell := time.Duration(rapid.IntRange(1, 100_000).Draw(t, "cell")) * time.Second
	tier := Tier{Cell: cell, Window: cell * time.Duration(rapid.OneOf(rapid.IntRange(1, 40), rapid.IntRange(1, 4000)).Draw(t, "cells"))}
	return Tiers{tier}.Cut(genCut.Draw(t, "cut"))[0]
})

// genCut draws how many cells hashes may span.
var genCut = rapid.OneOf(rapid.Just[int64](2*maxCells), rapid.Int64Range(1, 20), rapid.Just[int64](EpochCells))

// genMoment draws Unix milliseconds from 1902 to 2106.
var genMoment = rapid.Int64Range(-1<<41, 1<<42)

// A moment is in one cell of one epoch, which lives for as long as a question may look for it, and not much
// longer.
func TestEpochsOfATier(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		tier, now, hash := genTier.Draw(t, "tier"), genMoment.Draw(t, "now"), rapid.Uint64().Draw(t, "hash")
		w, span, current := tier.Window.Milliseconds(), tier.EpochMillis(), tier.EpochAt(now)
		at := rapid.Int64Range(now-w, now-1).Draw(t, "at")
		cell, epoch := tier.CellAt(at), tier.EpochAt(at)
		if start := tier.CellStart(cell); at < start || at >= start+tier.CellMillis() {
			t.Fatalf("%d is not in cell %d, which begins at %d", at, cell, start)
		}
		e, field := tier.EpochAndField(cell)
		if e != epoch || field < 0 || field >= tier.CellsPerEpoch() || tier.CellIn(e, field) != cell {
			t.Fatalf("cell %d is field %d of epoch %d; its moment is in epoch %d", cell, field, e, epoch)
		}
		if first := tier.EpochAt(at); current-first > (now-at+span-1)/span {
			t.Fatalf("the window from %d to %d touches epochs %d to %d", at, now, first, current)
		}

		if !(tier.Deadline(current, hash)*1000 > now) {
			t.Fatal("the current epoch is past its deadline")
		}
		if deadline := tier.Deadline(epoch, hash) * 1000; deadline <= at+w {
			t.Fatalf("a hit at %d expires at %d, inside its window", at, deadline)
		}
		// Whole seconds round a deadline up by less than one; with windows of a second
		// or two that can reach into the next epoch.
		gone := current - (w+tier.Grace()+min(w/4, span)+span-1)/span - 1
		if d := tier.Deadline(gone, hash) * 1000; d-999 > now {
			t.Fatalf("at %d the epoch %d before the current one lives until %d", now, current-gone, d)
		}
		if span == 2*w && gone != current-2 {
			t.Fatalf("%d epochs of two windows can be alive", current-gone)
		}

		// A name is listed for as long as a hash that it was listed for lives, and where a question looks for it.
		set := tier.NamesOf(epoch)
		if names := tier.NamesDeadline(set); names < tier.Deadline(epoch, hash) {
			t.Fatalf("the names expire at %d, a hash of theirs at %d", names, tier.Deadline(epoch, hash))
		}
		first, last := tier.NamesOf(tier.EpochAt(now-w)), tier.NamesOf(tier.EpochAt(now-1))
		if set < first || set > last || last-first > 1 {
			t.Fatalf("set %d of a hit is not among %d to %d, or these are more than two", set, first, last)
		}
		if tier.epoch == 0 && set != epoch {
			t.Fatalf("the names of epoch %d, of two windows, are in set %d", epoch, set)
		}
	})
}

func TestDeadlinesAreSpread(t *testing.T) {
	t.Parallel()
	tier := Tier{Cell: time.Minute, Window: time.Hour}
	seen := map[int64]int{}
	for i := range 10_000 {
		seen[tier.Deadline(0, HashCounter([]byte{byte(i), byte(i >> 8)}))]++
	}
	if len(seen) < 850 { // a quarter of an hour has 900 seconds
		t.Errorf("10,000 counters expire in %d different seconds; want about 900", len(seen))
	}
	// Those of a short epoch until the next one's begin to.
	tier = Tiers{{Cell: time.Second, Window: time.Hour}}.Cut(EpochCells)[0]
	first, last := int64(math.MaxInt64), int64(0)
	for i := range 10_000 {
		at := tier.Deadline(0, HashCounter([]byte{byte(i), byte(i >> 8)}))
		first, last = min(first, at), max(last, at)
	}
	if first != 256+3600+300 && first != 256+3600+300+1 || last < first+250 || last > first+256 {
		t.Errorf("hashes that span 256 s expire from %d to %d", first, last)
	}
}

// The jitter of a window of five years would overflow if it were a quarter of it.
func TestNamesOutliveTheHashesOfALongWindow(t *testing.T) {
	t.Parallel()
	tiers, err := ParseTiers("1d/1825d")
	require.NoError(t, err)
	tier, last := tiers[0], int64(0)
	for high := range uint64(1 << 10) {
		deadline := tier.Deadline(0, high<<54)
		require.GreaterOrEqual(t, deadline, last, "a larger hash has a longer jitter")
		require.LessOrEqual(t, deadline, tier.NamesDeadline(tier.NamesOf(0)))
		last = deadline
	}
}
