package window

import "time"

// Two-key sharding. Time is cut into epochs of two windows; each epoch of a
// counter and tier is one hash, whose deadline passes a window (and some slack)
// after the epoch ends. So at most two hashes of a counter and tier are alive, a
// window touches at most two, and nothing has to be deleted by hand.
//
// Moments are Unix milliseconds, deadlines Unix seconds (what EXPIREAT takes).

// maxGrace bounds the slack that a deadline adds for clocks that differ and for
// readers that ask about a moment a little while ago.
const maxGrace = 5 * time.Minute

// cellsPerEpoch is how many cells one hash can hold.
func (t Tier) cellsPerEpoch() int64 { return int64(2 * t.Window / t.Cell) }

func (t Tier) cellMillis() int64  { return t.Cell.Milliseconds() }
func (t Tier) epochMillis() int64 { return 2 * t.Window.Milliseconds() }

// cellAt is the number, since 1970, of the cell that holds a moment.
func (t Tier) cellAt(milli int64) int64 { return floorDiv(milli, t.cellMillis()) }

// cellStart is the first moment of a cell.
func (t Tier) cellStart(cell int64) int64 { return cell * t.cellMillis() }

// place is the epoch of a cell and its field in that epoch's hash.
func (t Tier) place(cell int64) (epoch, field int64) {
	n := t.cellsPerEpoch()
	epoch = floorDiv(cell, n)
	return epoch, cell - epoch*n
}

// cellOf is the cell of a field: the inverse of place.
func (t Tier) cellOf(epoch, field int64) int64 { return epoch*t.cellsPerEpoch() + field }

// epochAt is the epoch that holds a moment.
func (t Tier) epochAt(milli int64) int64 { return floorDiv(milli, t.epochMillis()) }

// deadline is the Unix second at which the hash of an epoch expires: the end of
// the epoch, a window in which it still answers, a grace of a quarter window (at
// most five minutes), and up to a quarter window that depends on the counter's
// hash alone, so that a million hashes do not expire in the same second.
// In all less than two windows after the epoch's end: before the hash after next begins.
func (t Tier) deadline(epoch int64, counterHash uint64) int64 {
	end := (epoch + 1) * t.epochMillis()
	w := t.Window.Milliseconds()
	jitter := int64((counterHash >> 32) * uint64(w/4) >> 32)
	return (end + w + t.grace() + jitter + 999) / 1000
}

// grace is in milliseconds; see maxGrace.
func (t Tier) grace() int64 { return min(t.Window.Milliseconds()/4, maxGrace.Milliseconds()) }

// floorDiv rounds down, also before 1970.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
