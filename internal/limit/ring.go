package limit

import "time"

// cellsPerWindow is how many cells a window has. With its beginning and its end between two cells, and the
// length of a cell in whole milliseconds, a window touches at most 62 cells. lua/cells.lua has the
// same number.
const cellsPerWindow = 60

// ringCells is more than a window touches, and a power of two.
const ringCells = 64

// ring counts like the policy Cells, in memory.
type ring struct {
	last  int64 // the time of the last hit, Unix milliseconds; 0 before the first
	cells [ringCells]int64
}

// view is a ring at a moment.
type view struct {
	now, window, size int64 // milliseconds
	ahead             int64 // of a clock that went back: the ring's time waits for it
	edge, last        int64 // the first and the last cell that can have hits
	inside            int64 // milliseconds of the oldest cell
	sum, cut          int64
}

func (v *view) lower() int64    { return v.sum - v.cut }
func (v *view) estimate() int64 { return v.lower() + v.part(v.cut) }

// part is how many of the n hits of the oldest cell are in the window, rounded up.
func (v *view) part(n int64) int64 { return (n*v.inside + v.size - 1) / v.size }

// at looks at the ring. A ring's time never goes back, unless it is ahead by more than a window: then the
// clock was set, and the ring begins anew.
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
	for cell := v.edge; cell <= v.last; cell++ {
		v.sum += r.cells[cell%ringCells]
	}
	if v.edge <= v.last {
		v.cut = r.cells[v.edge%ringCells]
	}
	return v
}

// add counts n hits at the moment of the view.
func (r *ring) add(v *view, n int64) {
	current := v.now / v.size
	for cell := max(v.last, current-ringCells) + 1; cell <= current; cell++ {
		r.cells[cell%ringCells] = 0 // it had an earlier cell's hits
	}
	r.cells[current%ringCells] += n
	r.last = v.now
}

// give takes n hits back from the newest cells.
func (r *ring) give(v *view, n int64) {
	for cell := v.last; cell >= v.edge && n > 0; cell-- {
		had := &r.cells[cell%ringCells]
		less := min(*had, n)
		*had -= less
		n -= less
		v.sum -= less
		if cell == v.edge {
			v.cut -= less
		}
	}
}

// wait is the time until excess hits have left the window. It goes from the oldest cell on to the one of which
// keep hits may stay. A cell leaves evenly, so those are its last keep / n.
func (r *ring) wait(v *view, excess int64) time.Duration {
	wait := v.window
	for cell := v.edge; cell <= v.last; cell++ {
		n := r.cells[cell%ringCells]
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
