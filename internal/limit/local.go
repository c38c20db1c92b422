package limit

import (
	"math"
	"sync"
	"time"
)

// LocalKeys is how many keys are counted in memory while Redis cannot be asked. If there are more, the
// one that was used longest ago among a few is forgotten, and begins anew.
const LocalKeys = 100_000

// local decides with rings in this process. It knows nothing of what Redis and other processes have counted.
// The rings stay when Redis decides again: if Redis comes and goes, a key must not begin anew each time.
type local struct {
	mu    sync.Mutex
	rings map[string]*ring // by key in Redis
}

// decide is like store.decide.
func (l *local) decide(takes []Take, keys []string, now time.Time, count bool) []state {
	l.mu.Lock()
	defer l.mu.Unlock()
	out, rings, views := make([]state, len(takes)), make([]*ring, len(takes)), make([]view, len(takes))
	all := true
	for i := range takes {
		limit := takes[i].Limit
		rings[i] = l.ring(keys[i])
		views[i] = rings[i].at(now, limit.Window)
		excess := views[i].estimate() + takes[i].N - limit.Max
		out[i].fits = takes[i].N <= 0 || excess <= 0
		if !out[i].fits {
			out[i].wait = rings[i].wait(&views[i], excess)
		}
		all = all && out[i].fits
	}
	for i, take := range takes {
		v := &views[i]
		if all && count && take.N < 0 {
			rings[i].give(v, -max(take.N, -math.MaxInt64))
		}
		out[i].lower, out[i].estimate, out[i].upper = v.lower(), v.estimate(), v.sum
		if all && count && take.N > 0 {
			rings[i].add(v, take.N)
		}
	}
	return out
}

// ring returns the ring of a key, and makes one if there is none.
func (l *local) ring(key string) *ring {
	r := l.rings[key]
	if r != nil {
		return r
	}
	if l.rings == nil {
		l.rings = make(map[string]*ring)
	}
	if len(l.rings) >= LocalKeys {
		l.evict()
	}
	r = &ring{}
	l.rings[key] = r
	return r
}

// evict removes the key that was used longest ago among a few; a map yields them in no order.
func (l *local) evict() {
	const few = 8
	oldest, seen := "", 0
	for key, r := range l.rings {
		if seen == 0 || r.last < l.rings[oldest].last {
			oldest = key
		}
		seen++
		if seen == few {
			break
		}
	}
	delete(l.rings, oldest)
}

func (l *local) forget(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.rings, key)
}
