package window

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

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

func TestAMomentIsInOneCell(t *testing.T) {
	t.Parallel()
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

func TestAWindowTouchesFewEpochs(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		tier, to := genTier.Draw(t, "tier"), genMoment.Draw(t, "to")
		length := rapid.Int64Range(1, tier.Window.Milliseconds()).Draw(t, "length")
		most := (length+tier.epochMillis()-1)/tier.epochMillis() + 1
		if first, last := tier.epochAt(to-length), tier.epochAt(to-1); last-first+1 > most {
			t.Fatalf("the window from %d to %d touches epochs %d to %d, more than %d", to-length, to, first, last, most)
		}
	})
}

// A hash spans the cells of two windows, or the bound if that is less.
func TestHashesAreBounded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		tiers string
		cut   int64
		cells string
	}{
		{DefaultTiers, EpochCells, "120 120 192 256"},
		{"1s/129s,1m/1d,1h/92d", EpochCells, "256 256 256"},
		{"1s/129s,1m/1d,1h/92d", 2 * maxCells, "258 2880 4416"},
		{"1s/1h", 100, "100"},
	} {
		var got []string
		for _, tier := range mustTiers(t, c.tiers).Cut(c.cut) {
			got = append(got, strconv.FormatInt(tier.cellsPerEpoch(), 10))
		}
		if s := strings.Join(got, " "); s != c.cells {
			t.Errorf("hashes of %s cut to %d hold %s cells; want %s", c.tiers, c.cut, s, c.cells)
		}
	}
}

func TestFewEpochsAreAlive(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		tier, now := genTier.Draw(t, "tier"), genMoment.Draw(t, "now")
		hash := rapid.Uint64().Draw(t, "hash")
		current := tier.epochAt(now)
		if !(tier.deadline(current, hash)*1000 > now) {
			t.Fatal("the current epoch is past its deadline")
		}
		// Whole seconds round a deadline up by less than one; with windows of a second
		// or two that can reach into the next epoch.
		w, span := tier.Window.Milliseconds(), tier.epochMillis()
		gone := current - (w+tier.grace()+min(w/4, span)+span-1)/span - 1
		if d := tier.deadline(gone, hash) * 1000; d-999 > now {
			t.Fatalf("at %d the epoch %d before the current one lives until %d", now, current-gone, d)
		}
		if span == 2*w && gone != current-2 {
			t.Fatalf("%d epochs of two windows can be alive", current-gone)
		}
	})
}

func TestADeadlineOutlastsTheWindow(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		tier, at := genTier.Draw(t, "tier"), genMoment.Draw(t, "at")
		deadline := tier.deadline(tier.epochAt(at), rapid.Uint64().Draw(t, "hash")) * 1000
		if deadline <= at+tier.Window.Milliseconds() {
			t.Fatalf("a hit at %d expires at %d, inside its window", at, deadline)
		}
	})
}

// A name is listed for as long as a hash that it was listed for lives, and where a question looks for it.
func TestNamesOutliveHashes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		tier, now := genTier.Draw(t, "tier"), genMoment.Draw(t, "now")
		from := now - tier.Window.Milliseconds()
		at := rapid.Int64Range(from, now-1).Draw(t, "at")
		epoch := tier.epochAt(at)
		set := tier.namesOf(epoch)
		if hash, names := tier.deadline(epoch, rapid.Uint64().Draw(t, "hash")), tier.namesDeadline(set); names < hash {
			t.Fatalf("the names expire at %d, a hash of theirs at %d", names, hash)
		}
		if first, last := tier.namesOf(tier.epochAt(from)), tier.namesOf(tier.epochAt(now-1)); set < first || set > last || last-first > 1 {
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
		seen[tier.deadline(0, HashCounter([]byte{byte(i), byte(i >> 8)}))]++
	}
	if len(seen) < 850 { // a quarter of an hour has 900 seconds
		t.Errorf("10,000 counters expire in %d different seconds; want about 900", len(seen))
	}
	// Those of a short epoch until the next one's begin to.
	tier = Tiers{{Cell: time.Second, Window: time.Hour}}.Cut(EpochCells)[0]
	first, last := int64(math.MaxInt64), int64(0)
	for i := range 10_000 {
		at := tier.deadline(0, HashCounter([]byte{byte(i), byte(i >> 8)}))
		first, last = min(first, at), max(last, at)
	}
	if first != 256+3600+300 && first != 256+3600+300+1 || last < first+250 || last > first+256 {
		t.Errorf("hashes that span 256 s expire from %d to %d", first, last)
	}
}
