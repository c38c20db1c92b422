// Package cells is the arithmetic of the policy cells: how many hits a rolling window has, without I/O.
package cells

import (
	"math"
	"math/bits"
	"time"
)

// PerWindow is how many cells a window has. A window that begins and ends inside cells touches at most 61.
// lua/cells.lua has the same number.
const PerWindow = 60

// Count is the number of cells of a Ring: more than a window touches, and a power of two.
const Count = 64

// most bounds the hits of a cell, so that no sum of a ring's cells overflows.
const most = math.MaxInt64 / Count

// Ring holds the hits of one key. It takes little for most keys, which have hits in one cell only.
type Ring struct {
	last  int64         // the time of the last hit, Unix milliseconds; 0 before the first
	only  int64         // hits in the cell of the last one, as long as there are no cells
	cells *[Count]int64 // nil: there is no other cell
}

// Last returns the time of the last hit, Unix milliseconds; 0 before the first.
func (r *Ring) Last() int64 { return r.last }

// Empty reports whether the ring has had no hit.
func (r *Ring) Empty() bool { return r.last == 0 }

func (r *Ring) cell(cell, last int64) *int64 {
	switch {
	case r.cells != nil:
		return &r.cells[cell%Count]
	case cell == last:
		return &r.only
	}
	return new(int64)
}

// View is a window of a Ring at one time.
type View struct {
	Sum int64 // the hits that may be in the window

	now, window, size int64 // milliseconds
	ahead             int64 // of a clock that went back: the ring's time waits for it
	edge, last        int64 // the first and the last cell that can have hits
	inside            int64 // milliseconds of the oldest cell
	cut               int64 // hits of the oldest cell
}

// Lower returns the hits that are certainly in the window.
func (v *View) Lower() int64 { return v.Sum - v.cut }

// Estimate returns Lower and the share of the oldest cell's hits that lies inside the window, rounded up.
func (v *View) Estimate() int64 { return v.Lower() + v.part(v.cut) }

// part returns how many of n hits of the oldest cell are in the window, rounded up.
func (v *View) part(n int64) int64 { return scale(n, v.inside, v.size, v.size-1) }

// scale returns (n·part + more) / whole, rounded down. Nothing is negative, and n or part is at most whole;
// n·part can have more than 64 bits.
func scale(n, part, whole, more int64) int64 {
	high, low := bits.Mul64(uint64(n), uint64(part))
	low, carry := bits.Add64(low, uint64(more), 0)
	quotient, _ := bits.Div64(high+carry, low, uint64(whole))
	return int64(quotient)
}

// At views the ring at now. Its time never goes back, unless it is ahead by more than a window: then the
// clock was set, and the ring restarts.
func (r *Ring) At(now time.Time, length time.Duration) View {
	v := View{now: now.UnixMilli(), window: length.Milliseconds()}
	v.size = (v.window + PerWindow - 1) / PerWindow
	if r.last-v.now > v.window {
		*r = Ring{}
	}
	v.ahead = max(0, r.last-v.now)
	v.now += v.ahead
	v.edge, v.last = (v.now-v.window)/v.size, r.last/v.size
	v.inside = (v.edge+1)*v.size - (v.now - v.window)
	switch {
	case v.edge > v.last:
	case r.cells == nil:
		v.Sum = r.only
	default:
		for cell := v.edge; cell <= v.last; cell++ {
			v.Sum += r.cells[cell%Count]
		}
	}
	if v.edge <= v.last {
		v.cut = *r.cell(v.edge, v.last)
	}
	return v
}

// Adjust counts n hits at now, or takes back -n if n is negative.
func (r *Ring) Adjust(now time.Time, window time.Duration, n int64) {
	v := r.At(now, window)
	if n < 0 {
		r.Give(&v, -n)
	} else if n > 0 {
		r.Add(&v, n)
	}
}

// Add counts n hits at the time of the view.
func (r *Ring) Add(v *View, n int64) {
	current := v.now / v.size
	switch {
	case r.cells == nil && current == v.last:
	case v.Sum == 0:
		r.only, r.cells = 0, nil
	default:
		r.spread(v.last)
		for cell := max(v.last, current-Count) + 1; cell <= current; cell++ {
			r.cells[cell%Count] = 0 // it had an earlier cell's hits
		}
	}
	filled := r.cell(current, current)
	*filled = min(*filled+n, most) // more than any max
	r.last = v.now
}

func (r *Ring) spread(last int64) {
	if r.cells == nil {
		r.cells = new([Count]int64)
		r.cells[last%Count] = r.only
	}
}

// Give takes back n hits, the newest first, and never more than the window has.
func (r *Ring) Give(v *View, n int64) {
	for cell := v.last; cell >= v.edge && n > 0; cell-- {
		had := r.cell(cell, v.last)
		less := min(*had, n)
		*had -= less
		n -= less
		v.Sum -= less
		if cell == v.edge {
			v.cut -= less
		}
	}
}

// Keep drops the oldest hits of the window beyond n.
func (r *Ring) Keep(now time.Time, window time.Duration, n int64) {
	v := r.At(now, window)
	for cell, excess := v.edge, v.Sum-n; cell <= v.last && excess > 0; cell++ {
		had := r.cell(cell, v.last)
		less := min(*had, excess)
		*had -= less
		excess -= less
	}
}

// Wait returns the time until excess hits have left the window. It goes from the oldest cell to the one of
// which keep hits may stay. A cell's hits leave evenly, so those are its last keep / n.
func (r *Ring) Wait(v *View, excess int64) time.Duration {
	wait := v.window
	for cell := v.edge; cell <= v.last; cell++ {
		n := *r.cell(cell, v.last)
		part := n
		if cell == v.edge {
			part = v.part(n)
		}
		if part >= excess {
			keep := part - excess
			wait = (cell+1)*v.size - scale(keep, v.size, n, 0) - (v.now - v.window)
			break
		}
		excess -= part
	}
	return time.Duration(wait+v.ahead) * time.Millisecond
}
