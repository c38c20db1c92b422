package limit

import (
	"sync"
	"time"
)

const (
	// DeniedKeys bounds the refusals remembered.
	DeniedKeys = 100_000
	// deniedFor bounds how long a refusal is remembered, so that resets and others' give-backs show soon.
	deniedFor = time.Second
)

// denials remembers refusals, so that a client that retries costs Redis nothing.
type denials struct {
	mu  sync.Mutex
	all map[string]denial // by key in Redis
}

// denial means that takes of n hits or more are refused.
type denial struct {
	n     int64
	until time.Time // from Redis; it may be forgotten before
	seen  time.Time
	said  state
	max   int64 // a reload can change it
}

func (d *denial) holds(now time.Time) bool {
	return now.Before(d.until) && now.Sub(d.seen) < deniedFor
}

// find returns the state of a take that is certainly refused, or false.
func (d *denials) find(t *Take, key string, now time.Time) (state, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	found, ok := d.all[key]
	if !ok || t.N < found.n || t.Limit.Max != found.max || !found.holds(now) {
		return state{}, false
	}
	out := found.said
	out.wait = found.until.Sub(now)
	return out, true
}

// remember keeps a refusal. asked is when Redis was asked: part of the wait passes before the reply.
func (d *denials) remember(t *Take, key string, said state, asked time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.all == nil {
		d.all = make(map[string]denial)
	}
	if _, known := d.all[key]; !known && len(d.all) >= DeniedKeys {
		d.makeRoom(asked)
	}
	d.all[key] = denial{n: t.N, until: asked.Add(said.wait), seen: asked, said: said, max: t.Limit.Max}
}

// makeRoom removes a few expired refusals, or a random one.
func (d *denials) makeRoom(now time.Time) {
	const few = 8
	seen, removed := 0, 0
	last := ""
	for key, denied := range d.all {
		last = key
		if !denied.holds(now) {
			delete(d.all, key)
			removed++
		}
		seen++
		if seen == few {
			break
		}
	}
	if removed == 0 {
		delete(d.all, last)
	}
}

func (d *denials) forget(key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.all, key)
}
