package window

import (
	"math"
)

// The names of counters. A writer sends a name with the expiry of the counter's coarsest hash, in the
// transaction that creates the hash, so every counter with such a hash is listed. There is a set for every
// two windows; a set per epoch would hold a name once for each hash of a window. It expires when the last
// hash that begins in it may expire.
//
// Unique cells can outlive the hashes, and tiers change while unique tiers do not. So every counter with a
// unique cell is also listed in a set of the coarsest unique tier's two windows, for erasures.
// The name goes into the transaction that updates the first registers of a cell that its writer knows of.

// NamesOf returns the number, since 1970, of the set that lists the names for an epoch.
func (t Tier) NamesOf(epoch int64) int64 { return FloorDiv(epoch*t.CellsPerEpoch(), twoWindows(t)) }

// NamesDeadline returns the Unix second at which a set of names expires: the latest deadline of its hashes.
func (t Tier) NamesDeadline(set int64) int64 {
	lastEpoch := FloorDiv((set+1)*twoWindows(t)-1, t.CellsPerEpoch())
	return t.Deadline(lastEpoch, math.MaxUint64)
}

// UniqueNamesOf returns the number, since 1970, of the set for unique cells that begin at a moment.
func (l Layout) UniqueNamesOf(milli int64) int64 {
	t := l.UniqueTiers[len(l.UniqueTiers)-1]
	return t.NamesOf(t.EpochAt(milli))
}

// UniqueNamesDeadline returns the Unix second at which such a set expires: the latest deadline of its cells.
func (l Layout) UniqueNamesDeadline(set int64) (out int64) {
	end := (set + 1) * 2 * l.UniqueTiers[len(l.UniqueTiers)-1].Window.Milliseconds()
	for _, t := range l.UniqueTiers {
		out = max(out, t.Deadline(t.CellAt(end-1), math.MaxUint64))
	}
	return out
}

// GroupOf returns the first parts of a name, separated by . and /. A separator at the beginning, as in a
// path, does not count.
func GroupOf(name string, parts int) string {
	for i := 1; i < len(name); i++ {
		if name[i] == '.' || name[i] == '/' {
			parts--
		}
		if parts == 0 {
			return name[:i]
		}
	}
	return name
}
