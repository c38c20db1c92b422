package gate

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// rateSeconds is the number of whole seconds in the decisions per second.
	rateSeconds = 60
	// busiestFor is how long a sketch counts. An answer joins it with the previous one, because the keys of
	// some hours ago say little about who is over the limit now.
	busiestFor = 5 * time.Minute
	// busiestKeys bounds the keys of a sketch. A key has at most 512 bytes, so a sketch takes some 65 KB.
	busiestKeys = 100
)

type outcome int

const (
	allowed outcome = iota
	refused
	failed      // nothing could be decided
	wouldRefuse // by a limit in shadow mode, under which it was not counted
)

// tally is the number of decisions by outcome.
type tally [wouldRefuse + 1]uint64

// usage is what this process decided under one limit. It takes at most some 135 KB, of which 130 are keys.
type usage struct {
	since time.Time // no decision before is in it

	mu      sync.Mutex
	total   tally
	seconds [rateSeconds + 1]struct {
		unix  int64 // which second it is
		tally tally
	}
	before, now sketch
	period      int64 // that of now: how many times busiestFor fits between 1970 and its beginning
}

func newUsage(now time.Time) *usage { return &usage{since: now, period: periodOf(now)} }

func periodOf(now time.Time) int64 { return now.Unix() / int64(busiestFor/time.Second) }

func (u *usage) add(key string, o outcome, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.turn(now)
	second := &u.seconds[uint64(now.Unix())%uint64(len(u.seconds))]
	if second.unix != now.Unix() {
		second.unix, second.tally = now.Unix(), tally{}
	}
	second.tally[o]++
	u.total[o]++
	u.now.add(key, o == refused || o == wouldRefuse)
}

// turn starts a new sketch when the time of the present one is over.
func (u *usage) turn(now time.Time) {
	due := periodOf(now)
	if due <= u.period { // the clock may have been set back
		return
	}
	u.before = sketch{}
	if due == u.period+1 {
		u.before = u.now
	}
	u.now, u.period = sketch{}, due
}

// lastMinute returns the decisions of the last whole seconds, and how many seconds these are.
func (u *usage) lastMinute(now time.Time) (sum tally, seconds float64) {
	last := now.Unix() - 1
	for _, s := range u.seconds {
		if s.unix <= last && s.unix > last-rateSeconds {
			for o, n := range s.tally {
				sum[o] += n
			}
		}
	}
	return sum, float64(min(rateSeconds, max(1, last-u.since.Unix()+1)))
}

func (u *usage) state(now time.Time, keys int) LimitState {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.turn(now)
	minute, seconds := u.lastMinute(now)
	rate := func(o outcome) float64 { return float64(minute[o]) / seconds }
	since := time.Unix((u.period-1)*int64(busiestFor/time.Second), 0)
	if since.Before(u.since) {
		since = u.since
	}
	out := LimitState{
		Since: u.since.UTC(), BusiestSince: since.UTC(),
		Allowed: u.total[allowed], Refused: u.total[refused], Failed: u.total[failed], WouldRefuse: u.total[wouldRefuse],
		AllowedRate: rate(allowed), RefusedRate: rate(refused), FailedRate: rate(failed), WouldRate: rate(wouldRefuse),
	}
	out.Busiest, out.OthersAtMost = busiest(&u.before, &u.now, keys)
	return out
}

// sketch finds the busiest keys in bounded memory: Space-Saving (Metwally, Agrawal, El Abbadi, 2005). A new
// key takes the slot and count of the one with the fewest decisions, which becomes its error. So a count is
// never too small, and too large by at most its error: a hundredth of all decisions.
type sketch struct {
	keys   []busyKey
	places map[string]int // in keys
}

type busyKey struct {
	Key       string `json:"key" doc:"What the limit's key template has made: hits are kept under it." example:"alice"`
	Decisions uint64 `json:"decisions" doc:"Decisions since busiest_since; at most error too many." example:"42"`
	Refused   uint64 `json:"refused" doc:"How many of them refused, or would have in shadow mode; at most error too few." example:"7"`
	Error     uint64 `json:"error" doc:"By how much the numbers can be wrong; 0 if they are exact." example:"0"`
}

// add counts a decision. It copies a new key, which may be a part of a whole request.
func (s *sketch) add(key string, refused bool) {
	place, known := s.places[key]
	if !known {
		key = strings.Clone(key)
		place = s.free()
		s.keys[place] = busyKey{Key: key, Decisions: s.keys[place].Decisions, Error: s.keys[place].Decisions}
		s.places[key] = place
	}
	s.keys[place].Decisions++
	if refused {
		s.keys[place].Refused++
	}
}

// free returns a slot for another key, that of the key with the fewest decisions if none is free.
func (s *sketch) free() int {
	if s.places == nil {
		s.keys, s.places = make([]busyKey, 0, busiestKeys), make(map[string]int, busiestKeys)
	}
	if len(s.keys) < busiestKeys {
		s.keys = append(s.keys, busyKey{})
		return len(s.keys) - 1
	}
	place := s.fewest()
	delete(s.places, s.keys[place].Key)
	return place
}

func (s *sketch) fewest() (place int) {
	for i := range s.keys {
		if s.keys[i].Decisions < s.keys[place].Decisions {
			place = i
		}
	}
	return place
}

// floor is the most decisions that a key outside the sketch can have had.
func (s *sketch) floor() uint64 {
	if len(s.keys) < busiestKeys {
		return 0
	}
	return s.keys[s.fewest()].Decisions
}

// busiest joins two periods' sketches: the busiest keys, and the most decisions of any other key.
func busiest(before, now *sketch, most int) (out []busyKey, floor uint64) {
	out = []busyKey{}
	join := func(k busyKey, other *sketch, floor uint64) {
		more := busyKey{Decisions: floor, Error: floor}
		if place, known := other.places[k.Key]; known {
			more = other.keys[place]
		}
		out = append(out, busyKey{k.Key, k.Decisions + more.Decisions, k.Refused + more.Refused, k.Error + more.Error})
	}
	beforeFloor, nowFloor := before.floor(), now.floor()
	for _, k := range now.keys {
		join(k, before, beforeFloor)
	}
	for _, k := range before.keys {
		if _, known := now.places[k.Key]; !known {
			join(k, now, nowFloor)
		}
	}
	slices.SortFunc(out, func(a, b busyKey) int {
		return cmp.Or(cmp.Compare(b.Decisions, a.Decisions), cmp.Compare(b.Refused, a.Refused), cmp.Compare(a.Key, b.Key))
	})
	floor = beforeFloor + nowFloor
	if len(out) > most {
		floor = max(floor, out[most].Decisions)
		out = out[:most]
	}
	return out, floor
}
