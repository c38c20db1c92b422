package window

import (
	"math"
	"time"
)

// A hash holds an epoch of a counter and tier: two windows, or EpochCells cells if that is less. It expires a
// window (and some slack) after its epoch. So hashes stay small, and a window of n epochs touches at most n+1
// of them. Moments are Unix milliseconds, deadlines Unix seconds.

// EpochRange is a range of epochs of a tier whose keys may still exist.
type EpochRange struct{ First, Last int64 }

// LiveEpochs returns the epochs whose hashes may exist now, with hits up to latest; one more at both ends.
func LiveEpochs(t Tier, now, latest int64) (first, last int64) {
	return t.EpochAt(now-kept(t)) - 1, t.EpochAt(max(now, latest)) + 1
}

// maxGrace bounds the slack of a deadline for clocks that differ and questions about a moment ago.
const maxGrace = 5 * time.Minute

// twoWindows returns the number of cells in two windows.
func twoWindows(t Tier) int64 { return int64(2 * t.Window / t.Cell) }

// CellsPerEpoch returns the number of cells that one hash can hold.
func (t Tier) CellsPerEpoch() int64 {
	if t.epoch > 0 {
		return t.epoch
	}
	return twoWindows(t)
}

func (t Tier) CellMillis() int64 { return t.Cell.Milliseconds() }

func (t Tier) EpochMillis() int64 { return t.CellsPerEpoch() * t.CellMillis() }

// CellAt returns the number, since 1970, of the cell that holds a moment.
func (t Tier) CellAt(milli int64) int64 { return FloorDiv(milli, t.CellMillis()) }

func (t Tier) CellStart(cell int64) int64 { return cell * t.CellMillis() }

// EpochAndField returns the epoch of a cell and its field in that epoch's hash.
func (t Tier) EpochAndField(cell int64) (epoch, field int64) {
	n := t.CellsPerEpoch()
	epoch = FloorDiv(cell, n)
	return epoch, cell - epoch*n
}

// CellIn is the inverse of place.
func (t Tier) CellIn(epoch, field int64) int64 { return epoch*t.CellsPerEpoch() + field }

func (t Tier) EpochStart(epoch int64) int64 { return epoch * t.EpochMillis() }

func (t Tier) EpochAt(milli int64) int64 { return FloorDiv(milli, t.EpochMillis()) }

// Deadline returns the Unix second at which the hash of an epoch expires: the epoch's end, plus a window in
// which it still answers, plus grace, plus a jitter.
//
// The jitter depends only on the counter's hash, so that a million hashes do not expire at once. It is at
// most a quarter window, and at most an epoch, because then the hashes of the next epoch begin to expire, and
// a longer one would not spread them further. A hash of two windows expires before the hash after next
// begins. The product of hash and jitter must fit into 64 bits, so no jitter is longer than 49 days.
func (t Tier) Deadline(epoch int64, counterHash uint64) int64 {
	end := (epoch + 1) * t.EpochMillis()
	jitter := int64((counterHash >> 32) * uint64(longestJitter(t)) >> 32)
	return FloorDiv(end+t.Window.Milliseconds()+t.Grace()+jitter+999, 1000)
}

// longestJitter is in milliseconds.
func longestJitter(t Tier) int64 {
	return min(t.Window.Milliseconds()/4, t.EpochMillis(), math.MaxUint32)
}

// kept returns how long a hash lives after its epoch, at most, in milliseconds.
func kept(t Tier) int64 { return t.Window.Milliseconds() + t.Grace() + longestJitter(t) + 1000 }

// FirstEpoch returns the earliest epoch whose hash can still exist at now (Unix milliseconds).
func (t Tier) FirstEpoch(counterHash uint64, now int64) int64 {
	epoch := t.EpochAt(now-kept(t)) - 1
	for t.Deadline(epoch, counterHash)*1000 <= now {
		epoch++
	}
	return epoch
}

// Grace is in milliseconds; see maxGrace.
func (t Tier) Grace() int64 { return min(t.Window.Milliseconds()/4, maxGrace.Milliseconds()) }

// FloorDiv rounds down, even before 1970.
func FloorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// Keep returns how long an ended stream's cursors are needed: a window plus grace.
func (l Layout) Keep() time.Duration {
	coarsest := l.Tiers[len(l.Tiers)-1]
	return coarsest.Window + time.Duration(coarsest.Grace())*time.Millisecond
}
