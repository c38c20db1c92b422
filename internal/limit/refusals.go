package limit

import (
	"context"
	"sync"
	"time"
)

const (
	// RefusedKeys bounds the refusals remembered.
	RefusedKeys = 100_000
	// refusedFor bounds how long a refusal is remembered, so that resets and others' give-backs show soon.
	refusedFor = time.Second
)

// refusals is the third decider. It remembers what Redis refused, so that a client that retries costs Redis
// nothing. Whatever it refuses, Redis would refuse, too, unless others gave back or reset in the last second.
type refusals struct {
	*process
	next *fallback

	mu  sync.Mutex         // guards all
	all map[string]refusal // by key in Redis
}

// refusal means that takes of n hits or more are refused.
type refusal struct {
	n     int64
	until time.Time // by Redis; it may be forgotten earlier
	seen  time.Time
	state state
	max   int64 // a reload can change it
}

func (f *refusal) holds(now time.Time) bool {
	return now.Before(f.until) && now.Sub(f.seen) < refusedFor
}

func (f *refusals) decide(ctx context.Context, r *request) (verdict, error) {
	if r.share || r.down != nil {
		return f.next.decide(ctx, r)
	}
	r.asked = f.now()
	if r.count && !r.ids { // what was counted before is allowed again
		if v, ok := f.refuse(r); ok {
			return v, nil
		}
	}
	v, err := f.next.decide(ctx, r)
	for i := range v.states {
		switch take := &r.takes[i]; {
		case take.Limit.Policy == Concurrent: // a slot can be free again at any time
		case take.N < 0, r.settle:
			f.forget(r.keys[i])
		case !v.states[i].fits:
			f.remember(take, r.keys[i], v.states[i], r.asked)
		}
	}
	return v, err
}

// refuse returns the remembered refusals of the takes, if any. Those in shadow mode, which refuse nothing,
// are enough only if all takes are remembered so.
func (f *refusals) refuse(r *request) (verdict, bool) {
	known, states := make([]Take, 0, 1), make([]state, 0, 1) // on the stack, for most requests
	var shadows []Take
	var shadowStates []state
	f.mu.Lock()
	for i := range r.takes {
		s, ok := f.find(&r.takes[i], r.keys[i], r.asked)
		switch {
		case ok && r.takes[i].Limit.Mode == Shadow:
			shadows, shadowStates = append(shadows, r.takes[i]), append(shadowStates, s)
		case ok:
			known, states = append(known, r.takes[i]), append(states, s)
		}
	}
	f.mu.Unlock()
	if len(shadows) == len(r.takes) {
		known, states = shadows, shadowStates
	}
	if len(known) == 0 {
		return verdict{}, false
	}
	return verdict{Answer: buildAnswer(known, states, SourceMemory, false)}, true
}

// find returns the state of a take that is certainly refused, or false. The caller holds mu.
func (f *refusals) find(t *Take, key string, now time.Time) (state, bool) {
	found, ok := f.all[key]
	if !ok || t.N < found.n || t.Limit.Max != found.max || !found.holds(now) {
		return state{}, false
	}
	out := found.state
	out.wait = found.until.Sub(now)
	return out, true
}

// remember keeps a refusal. asked is when Redis was asked: part of the wait passes before the reply.
func (f *refusals) remember(t *Take, key string, s state, asked time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all == nil {
		f.all = make(map[string]refusal)
	}
	if _, known := f.all[key]; !known && len(f.all) >= RefusedKeys {
		f.makeRoom(asked)
	}
	f.all[key] = refusal{n: t.N, until: asked.Add(s.wait), seen: asked, state: s, max: t.Limit.Max}
}

// makeRoom removes a few expired refusals, or a random one.
func (f *refusals) makeRoom(now time.Time) {
	seen, removed, last := 0, 0, ""
	for key, old := range f.all {
		last = key
		if !old.holds(now) {
			delete(f.all, key)
			removed++
		}
		if seen++; seen == 8 {
			break
		}
	}
	if removed == 0 {
		delete(f.all, last)
	}
}

func (f *refusals) forget(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.all, key)
}
