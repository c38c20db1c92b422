package window

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// genTier draws any tier that ParseTiers would take, within the default size of a hash.
var genTier = rapid.Custom(func(t *rapid.T) Tier {
	cell := time.Duration(rapid.IntRange(1, 100_000).Draw(t, "cell")) * time.Second
	return Tier{Cell: cell, Window: cell * time.Duration(rapid.IntRange(1, DefaultMaxCells/2).Draw(t, "cells"))}
})

// genMoment draws Unix milliseconds from 1902 to 2106.
var genMoment = rapid.Int64Range(-1<<41, 1<<42)

func TestAMomentIsInOneCell(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tier, at := genTier.Draw(t, "tier"), genMoment.Draw(t, "at")
		cell := tier.cellAt(at)
		if start := tier.cellStart(cell); at < start || at >= start+tier.cellMillis() {
			t.Fatalf("%d is not in cell %d, which begins at %d", at, cell, start)
		}
		epoch, field := tier.place(cell)
		if field < 0 || field >= tier.cellsPerEpoch() || tier.cellOf(epoch, field) != cell {
			t.Fatalf("cell %d is field %d of epoch %d, which is cell %d", cell, field, epoch, tier.cellOf(epoch, field))
		}
		if epoch != tier.epochAt(at) {
			t.Fatalf("cell %d is in epoch %d and its moment in %d", cell, epoch, tier.epochAt(at))
		}
	})
}

func TestAWindowTouchesAtMostTwoEpochs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tier, to := genTier.Draw(t, "tier"), genMoment.Draw(t, "to")
		length := rapid.Int64Range(1, tier.Window.Milliseconds()).Draw(t, "length")
		if first, last := tier.epochAt(to-length), tier.epochAt(to-1); last-first > 1 {
			t.Fatalf("the window from %d to %d touches epochs %d to %d", to-length, to, first, last)
		}
	})
}

func TestAtMostTwoEpochsAreAlive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tier, now := genTier.Draw(t, "tier"), genMoment.Draw(t, "now")
		hash := rapid.Uint64().Draw(t, "hash")
		current := tier.epochAt(now)
		if !(tier.deadline(current, hash)*1000 > now) {
			t.Fatal("the current epoch is past its deadline")
		}
		// Whole seconds round a deadline up by less than one; with windows of a second
		// or two that can reach into the next epoch.
		if d := tier.deadline(current-2, hash) * 1000; d-999 > now {
			t.Fatalf("at %d the epoch before the last one lives until %d", now, d)
		}
	})
}

func TestADeadlineOutlastsTheWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tier, at := genTier.Draw(t, "tier"), genMoment.Draw(t, "at")
		deadline := tier.deadline(tier.epochAt(at), rapid.Uint64().Draw(t, "hash")) * 1000
		if deadline <= at+tier.Window.Milliseconds() {
			t.Fatalf("a hit at %d expires at %d, inside its window", at, deadline)
		}
	})
}

func TestDeadlinesAreSpread(t *testing.T) {
	tier := Tier{Cell: time.Minute, Window: time.Hour}
	seen := map[int64]int{}
	for i := range 10_000 {
		seen[tier.deadline(0, HashCounter([]byte{byte(i), byte(i >> 8)}))]++
	}
	if len(seen) < 850 { // a quarter of an hour has 900 seconds
		t.Errorf("10,000 counters expire in %d different seconds; want about 900", len(seen))
	}
}
