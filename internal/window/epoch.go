package window

import "time"

// A hash holds an epoch of a counter and tier: two windows, or EpochCells cells if that is less. It expires a
// window (and some slack) after its epoch. So hashes stay small, and a window of n epochs touches at most n+1
// of them. Moments are Unix milliseconds, deadlines Unix seconds.

// maxGrace bounds the slack of a deadline for clocks that differ and questions about a moment ago.
const maxGrace = 5 * time.Minute

// twoWindows returns the number of cells in two windows.
func (t Tier) twoWindows() int64 { return int64(2 * t.Window / t.Cell) }

// cellsPerEpoch returns the number of cells that one hash can hold.
func (t Tier) cellsPerEpoch() int64 {
	if t.epoch > 0 {
		return t.epoch
	}
	return t.twoWindows()
}

func (t Tier) cellMillis() int64  { return t.Cell.Milliseconds() }
func (t Tier) epochMillis() int64 { return t.cellsPerEpoch() * t.cellMillis() }

// cellAt returns the number, since 1970, of the cell that holds a moment.
func (t Tier) cellAt(milli int64) int64 { return floorDiv(milli, t.cellMillis()) }

func (t Tier) cellStart(cell int64) int64 { return cell * t.cellMillis() }

// place returns the epoch of a cell and its field in that epoch's hash.
func (t Tier) place(cell int64) (epoch, field int64) {
	n := t.cellsPerEpoch()
	epoch = floorDiv(cell, n)
	return epoch, cell - epoch*n
}

// cellOf is the inverse of place.
func (t Tier) cellOf(epoch, field int64) int64 { return epoch*t.cellsPerEpoch() + field }

func (t Tier) epochStart(epoch int64) int64 { return epoch * t.epochMillis() }

func (t Tier) epochAt(milli int64) int64 { return floorDiv(milli, t.epochMillis()) }

// deadline returns the Unix second at which the hash of an epoch expires: the epoch's end, plus a window in
// which it still answers, plus grace, plus a jitter.
//
// The jitter depends only on the counter's hash, so that a million hashes do not expire at once. It is at
// most a quarter window, and at most an epoch, because then the hashes of the next epoch begin to expire, and
// a longer one would not spread them further. A hash of two windows expires before the hash after next
// begins.
func (t Tier) deadline(epoch int64, counterHash uint64) int64 {
	end := (epoch + 1) * t.epochMillis()
	jitter := int64((counterHash >> 32) * uint64(t.longestJitter()) >> 32)
	return (end + t.Window.Milliseconds() + t.grace() + jitter + 999) / 1000
}

// longestJitter is in milliseconds.
func (t Tier) longestJitter() int64 { return min(t.Window.Milliseconds()/4, t.epochMillis()) }

// kept returns how long a hash lives after its epoch, at most, in milliseconds.
func (t Tier) kept() int64 { return t.Window.Milliseconds() + t.grace() + t.longestJitter() + 1000 }

// firstEpoch returns the earliest epoch whose hash can still exist at now (Unix milliseconds).
func (t Tier) firstEpoch(counterHash uint64, now int64) int64 {
	epoch := t.epochAt(now-t.kept()) - 1
	for t.deadline(epoch, counterHash)*1000 <= now {
		epoch++
	}
	return epoch
}

// grace is in milliseconds; see maxGrace.
func (t Tier) grace() int64 { return min(t.Window.Milliseconds()/4, maxGrace.Milliseconds()) }

// floorDiv rounds down, even before 1970.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
