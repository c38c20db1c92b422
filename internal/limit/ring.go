package limit

import (
	"math"
	"time"
)

// cellsPerWindow is how many cells a window has. A window that begins and ends inside cells, whose length is
// in whole milliseconds, touches at most 62. lua/cells.lua has the same number.
const cellsPerWindow = 60

// ringCells is more than a window touches, and a power of two.
const ringCells = 64

// ring counts like the policy Cells, in memory. It takes little for most keys, with hits in one cell only.
type ring struct {
	last  int64             // the time of the last hit, Unix milliseconds; 0 before the first
	only  int32             // hits in the cell of the last one, as long as there are no cells
	cells *[ringCells]int32 // nil: there is no other cell
}

func (r *ring) cell(cell, last int64) *int32 {
	switch {
	case r.cells != nil:
		return &r.cells[cell%ringCells]
	case cell == last:
		return &r.only
	}
	return new(int32)
}

type view struct {
	now, window, size int64 // milliseconds
	ahead             int64 // of a clock that went back: the ring's time waits for it
	edge, last        int64 // the first and the last cell that can have hits
	inside            int64 // milliseconds of the oldest cell
	sum, cut          int64
}

func (v *view) lower() int64    { return v.sum - v.cut }
func (v *view) estimate() int64 { return v.lower() + v.part(v.cut) }

// part returns how many of n hits of the oldest cell are in the window, rounded up.
func (v *view) part(n int64) int64 { return (n*v.inside + v.size - 1) / v.size }

// at views the ring at now. Its time never goes back, unless it is ahead by more than a window: then the
// clock was set, and the ring restarts.
func (r *ring) at(now time.Time, length time.Duration) view {
	v := view{now: now.UnixMilli(), window: length.Milliseconds()}
	v.size = (v.window + cellsPerWindow - 1) / cellsPerWindow
	if r.last-v.now > v.window {
		*r = ring{}
	}
	v.ahead = max(0, r.last-v.now)
	v.now += v.ahead
	v.edge, v.last = (v.now-v.window)/v.size, r.last/v.size
	v.inside = (v.edge+1)*v.size - (v.now - v.window)
	switch {
	case v.edge > v.last:
	case r.cells == nil:
		v.sum = int64(r.only)
	default:
		for cell := v.edge; cell <= v.last; cell++ {
			v.sum += int64(r.cells[cell%ringCells])
		}
	}
	if v.edge <= v.last {
		v.cut = int64(*r.cell(v.edge, v.last))
	}
	return v
}

func (r *ring) add(v *view, n int64) {
	current := v.now / v.size
	switch {
	case r.cells == nil && current == v.last:
	case v.sum == 0:
		r.only, r.cells = 0, nil
	default:
		r.spread(v.last)
		for cell := max(v.last, current-ringCells) + 1; cell <= current; cell++ {
			r.cells[cell%ringCells] = 0 // it had an earlier cell's hits
		}
	}
	filled := r.cell(current, current)
	*filled = int32(min(int64(*filled)+n, math.MaxInt32)) // more than any max
	r.last = v.now
}

func (r *ring) spread(last int64) {
	if r.cells == nil {
		r.cells = new([ringCells]int32)
		r.cells[last%ringCells] = r.only
	}
}

func (r *ring) give(v *view, n int64) {
	for cell := v.last; cell >= v.edge && n > 0; cell-- {
		had := r.cell(cell, v.last)
		less := min(int64(*had), n)
		*had -= int32(less)
		n -= less
		v.sum -= less
		if cell == v.edge {
			v.cut -= less
		}
	}
}

// wait is the time until excess hits have left the window. It goes from the oldest cell to the one of which
// keep hits may stay. A cell's hits leave evenly, so those are its last keep / n.
func (r *ring) wait(v *view, excess int64) time.Duration {
	wait := v.window
	for cell := v.edge; cell <= v.last; cell++ {
		n := int64(*r.cell(cell, v.last))
		part := n
		if cell == v.edge {
			part = v.part(n)
		}
		if part >= excess {
			keep := part - excess
			wait = (cell+1)*v.size - keep*v.size/n - (v.now - v.window)
			break
		}
		excess -= part
	}
	return time.Duration(wait+v.ahead) * time.Millisecond
}
