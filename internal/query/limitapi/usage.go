package limitapi

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
	outcomeAllowed outcome = iota
	outcomeRefused
	outcomeFailed      // nothing could be decided
	outcomeWouldRefuse // by a limit in shadow mode, under which it was not counted
)

// tally is the number of decisions by outcome.
type tally [outcomeWouldRefuse + 1]uint64

// usage is what this process decided under one limit. It takes at most some 135 KB, of which 130 are keys.
type usage struct {
	since time.Time // no decision before is in it

	mu      sync.Mutex
	total   tally
	seconds [rateSeconds + 1]struct {
		unix  int64 // which second it is
		tally tally
	}
	previous, current sketch
	period            int64 // that of now: how many times busiestFor fits between 1970 and its beginning
}

func newUsage(now time.Time) *usage { return &usage{since: now, period: periodAt(now)} }

func periodAt(now time.Time) int64 { return now.Unix() / int64(busiestFor/time.Second) }

func (u *usage) add(key string, o outcome, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.rotate(now)
	second := &u.seconds[uint64(now.Unix())%uint64(len(u.seconds))]
	if second.unix != now.Unix() {
		second.unix, second.tally = now.Unix(), tally{}
	}
	second.tally[o]++
	u.total[o]++
	u.current.add(key, o == outcomeRefused || o == outcomeWouldRefuse)
}

// rotate starts a new sketch when the time of the present one is over.
func (u *usage) rotate(now time.Time) {
	due := periodAt(now)
	if due <= u.period { // the clock may have been set back
		return
	}
	u.previous = sketch{}
	if due == u.period+1 {
		u.previous = u.current
	}
	u.current, u.period = sketch{}, due
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

// LimitState is one limit and what this process decided under it.
type LimitState struct {
	Limit        string      `json:"limit" doc:"The name of the limit." example:"login"`
	Window       string      `json:"window" doc:"The length of the rolling window." example:"1m"`
	Max          int64       `json:"max" doc:"How many hits are allowed in the window; 0: it refuses always, or is unlimited." example:"5"`
	Unlimited    bool        `json:"unlimited,omitempty" doc:"True if it allows always, and counts nothing." example:"true"`
	Policy       namedPolicy `json:"policy" doc:"How hits are kept." example:"log"`
	Kept         string      `json:"kept" doc:"The same in words." example:"in a log: exact"`
	Slots        bool        `json:"slots,omitempty" doc:"True if max is how many hold a slot at once." example:"true"`
	Mode         string      `json:"mode" doc:"enforce; or shadow: it refuses nothing." example:"enforce"`
	Fail         string      `json:"fail" doc:"What happens without Redis: local, open or closed." example:"closed"`
	Key          string      `json:"key" doc:"The key template." example:"{key}"`
	Variables    []string    `json:"variables" doc:"The parameters that /v1/limit needs in addition to limit." example:"[\"key\"]"`
	Since        time.Time   `json:"since" doc:"Decisions are counted from this moment on: the start of the process, or when the limit came into the file." example:"2026-11-21T08:00:00Z"`
	Allowed      uint64      `json:"allowed" doc:"How many takes were allowed." example:"1200"`
	Refused      uint64      `json:"refused" doc:"How many were refused." example:"7"`
	Failed       uint64      `json:"failed" doc:"How many could not be decided." example:"0"`
	WouldRefuse  uint64      `json:"would_refuse" doc:"How many would have been refused, if it were not in shadow mode." example:"0"`
	AllowedRate  float64     `json:"allowed_per_second" doc:"Takes allowed per second, over the last minute." example:"1.5"`
	RefusedRate  float64     `json:"refused_per_second" doc:"Takes refused per second, over the last minute." example:"0.1"`
	FailedRate   float64     `json:"failed_per_second" doc:"Takes per second that could not be decided, over the last minute." example:"0"`
	WouldRate    float64     `json:"would_refuse_per_second" doc:"Takes per second that would have been refused, over the last minute." example:"0"`
	Share        *share      `json:"share,omitempty" doc:"What this process acquires from Redis at once; absent if Redis decides about every take. All processes together keep to max all the same."`
	BusiestSince time.Time   `json:"busiest_since" doc:"The busiest keys are those since this moment: at most 10 minutes ago." example:"2026-11-21T09:55:00Z"`
	Busiest      []busyKey   `json:"busiest" doc:"The keys with most decisions, most first."`
	OthersAtMost uint64      `json:"others_at_most" doc:"No key that is not listed has had more decisions since then." example:"3"`
}

type share struct {
	Hits    int64   `json:"hits" doc:"How many hits at most." example:"100"`
	For     float64 `json:"for" doc:"For how many seconds. Then unspent hits are given back." example:"1"`
	Unspent int64   `json:"unspent" doc:"How many unspent hits this process has, of all keys: others cannot use them." example:"37"`
}

// state copies what is counted under the lock, so that one answer is of one moment.
func (u *usage) state(now time.Time, keys int) LimitState {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.rotate(now)
	minute, seconds := u.lastMinute(now)
	rate := func(o outcome) float64 { return float64(minute[o]) / seconds }
	since := time.Unix((u.period-1)*int64(busiestFor/time.Second), 0)
	if since.Before(u.since) {
		since = u.since
	}
	out := LimitState{
		Since: u.since.UTC(), BusiestSince: since.UTC(),
		Allowed: u.total[outcomeAllowed], Refused: u.total[outcomeRefused], Failed: u.total[outcomeFailed],
		WouldRefuse: u.total[outcomeWouldRefuse],
		AllowedRate: rate(outcomeAllowed), RefusedRate: rate(outcomeRefused), FailedRate: rate(outcomeFailed),
		WouldRate: rate(outcomeWouldRefuse),
	}
	out.Busiest, out.OthersAtMost = mergeBusiest(&u.previous, &u.current, keys)
	return out
}

// sketch finds the busiest keys in bounded memory: Space-Saving (Metwally, Agrawal, El Abbadi, 2005). A new
// key takes the slot and count of the one with the fewest decisions, which becomes its error. So a count is
// never too small, and too large by at most its error: a hundredth of all decisions.
type sketch struct {
	keys    []busyKey
	indexes map[string]int // in keys
}

type busyKey struct {
	Key       string `json:"key" doc:"The key that hits are kept under, made by the limit's key template." example:"alice"`
	Decisions uint64 `json:"decisions" doc:"Decisions since busiest_since; too large by at most error." example:"42"`
	Refused   uint64 `json:"refused" doc:"How many of them refused, or would have in shadow mode; too small by at most error." example:"7"`
	Error     uint64 `json:"error" doc:"By how much the numbers can be wrong; 0 if they are exact." example:"0"`
}

// add counts a decision. It copies a new key, which may be a part of a whole request.
func (s *sketch) add(key string, refused bool) {
	index, known := s.indexes[key]
	if !known {
		key = strings.Clone(key)
		index = s.freeIndex()
		s.keys[index] = busyKey{Key: key, Decisions: s.keys[index].Decisions, Error: s.keys[index].Decisions}
		s.indexes[key] = index
	}
	s.keys[index].Decisions++
	if refused {
		s.keys[index].Refused++
	}
}

// freeIndex returns a slot for another key, that of the key with the fewest decisions if none is free.
func (s *sketch) freeIndex() int {
	if s.indexes == nil {
		s.keys, s.indexes = make([]busyKey, 0, busiestKeys), make(map[string]int, busiestKeys)
	}
	if len(s.keys) < busiestKeys {
		s.keys = append(s.keys, busyKey{})
		return len(s.keys) - 1
	}
	index := s.fewestIndex()
	delete(s.indexes, s.keys[index].Key)
	return index
}

func (s *sketch) fewestIndex() (index int) {
	for i := range s.keys {
		if s.keys[i].Decisions < s.keys[index].Decisions {
			index = i
		}
	}
	return index
}

// floor is the most decisions that a key outside the sketch can have had.
func (s *sketch) floor() uint64 {
	if len(s.keys) < busiestKeys {
		return 0
	}
	return s.keys[s.fewestIndex()].Decisions
}

// mergeBusiest joins two periods' sketches: the busiest keys, and the most decisions of any other key.
func mergeBusiest(before, now *sketch, most int) (out []busyKey, floor uint64) {
	out = []busyKey{}
	join := func(k busyKey, other *sketch, floor uint64) {
		more := busyKey{Decisions: floor, Error: floor}
		if index, known := other.indexes[k.Key]; known {
			more = other.keys[index]
		}
		out = append(out, busyKey{k.Key, k.Decisions + more.Decisions, k.Refused + more.Refused, k.Error + more.Error})
	}
	beforeFloor, nowFloor := before.floor(), now.floor()
	for _, k := range now.keys {
		join(k, before, beforeFloor)
	}
	for _, k := range before.keys {
		if _, known := now.indexes[k.Key]; !known {
			join(k, now, nowFloor)
		}
	}
	slices.SortFunc(out, func(a, b busyKey) int {
		return cmp.Or(cmp.Compare(b.Decisions, a.Decisions), cmp.Compare(b.Refused, a.Refused),
			cmp.Compare(a.Key, b.Key))
	})
	floor = beforeFloor + nowFloor
	if len(out) > most {
		floor = max(floor, out[most].Decisions)
		out = out[:most]
	}
	return out, floor
}
