package gate

import (
	"sync"
	"time"

	"tallyroll/internal/limit"
)

const (
	// rateSeconds is over how many whole seconds decisions per second are taken.
	rateSeconds = 60
	// busiestFor is how long a sketch counts. An answer is about it and the one before.
	busiestFor = 5 * time.Minute
)

// tally is how many decisions there were.
type tally struct{ allowed, refused, failed, wouldRefuse uint64 }

func (t *tally) add(o outcome) {
	switch o {
	case allowed:
		t.allowed++
	case refused:
		t.refused++
	case wouldRefuse:
		t.wouldRefuse++
	default:
		t.failed++
	}
}

// outcome is what became of a take.
type outcome int

const (
	allowed outcome = iota
	refused
	failed      // nothing could be decided
	wouldRefuse // by a limit in shadow mode, under which it was not counted
)

// usage is what this process has decided under one limit. It takes at most some 135 KB, of which 130 are keys.
type usage struct {
	since time.Time // no decision before is in it

	mu      sync.Mutex
	total   tally
	seconds [rateSeconds + 1]struct {
		unix int64 // which second it is
		tally
	}
	// Two sketches: the keys of some hours ago say little about who is over the limit now.
	before, now *sketch
	turned      int64 // how many times busiestFor fits between 1970 and the beginning of now
}

func newUsage(now time.Time) *usage {
	return &usage{since: now, before: new(sketch), now: new(sketch), turned: turnOf(now)}
}

// add counts a decision about a key.
func (u *usage) add(key string, o outcome, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.total.add(o)
	unix := now.Unix()
	second := &u.seconds[uint64(unix)%uint64(len(u.seconds))]
	if second.unix != unix {
		second.unix, second.tally = unix, tally{}
	}
	second.add(o)
	u.turn(now)
	u.now.add(key, o == refused || o == wouldRefuse)
}

func turnOf(now time.Time) int64 { return now.Unix() / int64(busiestFor/time.Second) }

// turn begins another sketch if the time of the present one is over.
func (u *usage) turn(now time.Time) {
	due := turnOf(now)
	if due <= u.turned { // the clock may have been set back
		return
	}
	u.before, u.now = u.now, u.before
	u.now.clear()
	if due > u.turned+1 {
		u.before.clear()
	}
	u.turned = due
}

// busiestSince is when the time of the two sketches began.
func (u *usage) busiestSince() time.Time {
	began := time.Unix((u.turned-1)*int64(busiestFor/time.Second), 0)
	if began.Before(u.since) {
		return u.since
	}
	return began
}

// lastMinute is how many decisions there were in the last whole seconds, and how many seconds these are.
func (u *usage) lastMinute(now time.Time) (sum tally, seconds float64) {
	last := now.Unix() - 1
	for i := range u.seconds {
		if s := &u.seconds[i]; s.unix <= last && s.unix > last-rateSeconds {
			sum.allowed, sum.refused, sum.failed = sum.allowed+s.allowed, sum.refused+s.refused, sum.failed+s.failed
			sum.wouldRefuse += s.wouldRefuse
		}
	}
	return sum, float64(min(rateSeconds, max(1, last-u.since.Unix()+1)))
}

// usages are those of the named limits. Its methods may be called concurrently.
type usages struct {
	now func() time.Time
	all sync.Map // *usage by name
}

// of returns the usage of a limit that may have a name.
func (u *usages) of(name string) *usage {
	found, ok := u.all.Load(name)
	if !ok {
		return nil
	}
	return found.(*usage)
}

// keep makes room for the limits of a file, and forgets those that are gone.
func (u *usages) keep(set limit.Set) {
	u.all.Range(func(name, _ any) bool {
		if set[name.(string)] == nil {
			u.all.Delete(name)
		}
		return true
	})
	for name := range set {
		if u.of(name) == nil {
			u.all.Store(name, newUsage(u.now()))
		}
	}
}

// add counts a decision about a take. One under numbers of the request, or under a limit that is gone, has no place.
func (u *usages) add(take *limit.Take, o outcome, now time.Time) {
	if use := u.of(take.Limit.Name); use != nil {
		use.add(take.Under, o, now)
	}
}
