package limit

import (
	"slices"
	"sort"
	"time"
)

// model is a key as doc.go describes it, by brute force: a slice of hits, which every question walks
// through from the beginning.
type model struct {
	cells       bool // as the policy Cells counts; otherwise exactly
	keeps       bool // the time of the last hit, also if it is given back
	local       bool // as a ring counts: nothing expires, and a look is enough to begin anew
	window, max int64
	size        int64 // of a cell
	hits        []hits
	last        int64 // the last hit that was counted
	expires     int64 // 0 before the first hit
}

// hits are n hits of a moment.
type hits struct{ at, n int64 }

func newModel(l *Limit, local bool) *model {
	w := l.Window.Milliseconds()
	return &model{cells: local || l.Policy == Cells, keeps: local || l.Policy != Log, local: local, window: w, max: l.Max, size: (w + 59) / 60}
}

// moment is a model at a time.
type moment struct {
	now                    int64
	anew                   bool // the clock has gone back by more than a window
	lower, estimate, upper int64
	truth                  int64 // the hits in the window
}

// expire removes what Redis would have removed by now.
func (m *model) expire(clock int64) {
	if m.expires > 0 && clock > m.expires && !m.local {
		m.hits, m.last, m.expires = nil, 0, 0
	}
}

// newest is the time that the key's own time never goes back behind.
func (m *model) newest() int64 {
	if m.keeps {
		return m.last
	}
	if len(m.hits) == 0 {
		return 0
	}
	return m.hits[len(m.hits)-1].at
}

// at looks at the model and changes nothing.
func (m *model) at(clock int64) moment {
	out := moment{now: max(clock, m.newest())}
	if m.newest()-clock > m.window {
		return moment{now: clock, anew: true}
	}
	from := out.now - m.window
	cut := int64(0)
	for _, h := range m.hits {
		if h.at > from {
			out.truth += h.n
		}
		switch cell := h.at / m.size; {
		case cell > from/m.size:
			out.lower += h.n
		case cell == from/m.size:
			cut += h.n
		}
	}
	if !m.cells {
		out.lower, out.estimate, out.upper = out.truth, out.truth, out.truth
		return out
	}
	inside := (from/m.size+1)*m.size - from
	out.estimate = out.lower + (cut*inside+m.size-1)/m.size
	out.upper = out.lower + cut
	return out
}

func (m *model) fits(clock, n int64) bool { return n <= 0 || m.at(clock).estimate+n <= m.max }

// wait is the milliseconds until n hits fit, if nothing else comes.
func (m *model) wait(clock, n int64) int64 {
	return int64(sort.Search(int(3*m.window+m.size), func(w int) bool { return m.fits(clock+int64(w), n) }))
}

// add counts n hits.
func (m *model) add(clock, n int64) {
	at := m.at(clock)
	if at.anew {
		m.hits, m.last = nil, 0
	}
	if !m.cells {
		m.trim(at.now)
		m.expires = at.now + m.window
	} else if m.last/m.size < at.now/m.size {
		m.expires = at.now + m.window + 2*m.size
	}
	m.hits = append(m.hits, hits{at.now, n})
	m.last = at.now
}

// give takes back the newest n hits that are, or for cells may be, in the window, and returns how many there were.
func (m *model) give(clock, n int64) (given int64) {
	at := m.at(clock)
	switch {
	case at.anew && m.cells:
		return 0
	case at.anew:
		m.hits, m.last = nil, 0
		return 0
	case !m.cells && n >= at.truth: // the key goes, and with it what had left the window
		m.hits, m.last = nil, 0
		return at.truth
	case !m.cells:
		m.expires = at.now + m.window
	}
	for i := len(m.hits) - 1; i >= 0 && n > 0; i-- {
		if m.cells && m.hits[i].at/m.size < (at.now-m.window)/m.size {
			break
		}
		less := min(n, m.hits[i].n)
		m.hits[i].n -= less
		n, given = n-less, given+less
	}
	m.hits = slices.DeleteFunc(m.hits, func(h hits) bool { return h.n == 0 })
	return given
}

func (m *model) trim(now int64) {
	m.hits = slices.DeleteFunc(m.hits, func(h hits) bool { return h.at <= now-m.window })
}

// decideByModels is store.decide by models of the takes' keys.
func decideByModels(models []*model, clock int64, ns []int64, count bool) []state {
	out, all := make([]state, len(models)), true
	for i, m := range models {
		m.expire(clock)
		if m.local && m.at(clock).anew {
			m.hits, m.last = nil, 0
		}
		out[i].fits = m.fits(clock, ns[i])
		all = all && out[i].fits
	}
	for i, m := range models {
		if all && count && ns[i] < 0 {
			out[i].counted = -m.give(clock, -ns[i])
		}
		at := m.at(clock)
		out[i].lower, out[i].estimate, out[i].upper = at.lower, at.estimate, at.upper
		if !out[i].fits {
			out[i].wait = time.Duration(m.wait(clock, ns[i])) * time.Millisecond
		}
		if all && count && ns[i] > 0 {
			m.add(clock, ns[i])
			out[i].counted, out[i].at = ns[i], m.last
		}
	}
	return out
}
