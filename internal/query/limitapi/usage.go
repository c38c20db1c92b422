package limitapi

import (
	"sync"
	"time"

	"tallyroll/internal/limit"
)

// rateSeconds is the number of whole seconds in the decisions per second.
const rateSeconds = 60

type outcome int

const (
	outcomeAllowed outcome = iota
	outcomeRefused
	outcomeFailed      // nothing could be decided
	outcomeWouldRefuse // by a limit in shadow mode, under which it was not counted
)

// tally is the number of decisions by outcome.
type tally [outcomeWouldRefuse + 1]uint64

// usage is what this process decided under one limit.
type usage struct {
	since time.Time // no decision before is in it

	mu      sync.Mutex
	total   tally
	seconds [rateSeconds + 1]struct {
		unix  int64 // which second it is
		tally tally
	}
}

func (u *usage) add(o outcome, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	second := &u.seconds[uint64(now.Unix())%uint64(len(u.seconds))]
	if second.unix != now.Unix() {
		second.unix, second.tally = now.Unix(), tally{}
	}
	second.tally[o]++
	u.total[o]++
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
	Limit       string      `json:"limit" doc:"The name of the limit." example:"login"`
	Window      string      `json:"window" doc:"The length of the rolling window, or today, week, month or year." example:"1m"`
	TZ          string      `json:"tz,omitempty" doc:"The time zone of today, week, month and year." example:"Europe/Berlin"`
	Starts      string      `json:"starts,omitempty" doc:"The day that a week or month starts on, if it is not the usual one." example:"17"`
	AtMost      int64       `json:"at_most,omitempty" doc:"A take may give its own max, up to this." example:"5000000"`
	Max         int64       `json:"max" doc:"How many hits are allowed in the window; 0: it refuses always, or is unlimited." example:"5"`
	Unlimited   bool        `json:"unlimited,omitempty" doc:"True if it allows always, and counts nothing." example:"true"`
	Policy      namedPolicy `json:"policy" doc:"How hits are kept." example:"log"`
	Kept        string      `json:"kept" doc:"The same in words." example:"in a log: exact"`
	Slots       bool        `json:"slots,omitempty" doc:"True if max is how many hold a slot at once." example:"true"`
	Mode        string      `json:"mode" doc:"enforce; or shadow: it refuses nothing." example:"enforce"`
	Fail        string      `json:"fail" doc:"What happens without Redis: local, open or closed." example:"closed"`
	Key         string      `json:"key" doc:"The key template." example:"{key}"`
	Variables   []string    `json:"variables" doc:"The parameters that /v1/limit needs in addition to limit." example:"[\"key\"]"`
	Since       time.Time   `json:"since" doc:"Decisions are counted from this moment on: the start of the process, or when the limit came into the file." example:"2026-11-21T08:00:00Z"`
	Allowed     uint64      `json:"allowed" doc:"How many takes were allowed." example:"1200"`
	Refused     uint64      `json:"refused" doc:"How many were refused." example:"7"`
	Failed      uint64      `json:"failed" doc:"How many could not be decided." example:"0"`
	WouldRefuse uint64      `json:"would_refuse" doc:"How many would have been refused, if it were not in shadow mode." example:"0"`
	AllowedRate float64     `json:"allowed_per_second" doc:"Takes allowed per second, over the last minute." example:"1.5"`
	RefusedRate float64     `json:"refused_per_second" doc:"Takes refused per second, over the last minute." example:"0.1"`
	FailedRate  float64     `json:"failed_per_second" doc:"Takes per second that could not be decided, over the last minute." example:"0"`
	WouldRate   float64     `json:"would_refuse_per_second" doc:"Takes per second that would have been refused, over the last minute." example:"0"`
	Count       *counters   `json:"count,omitempty" doc:"The counters that its decisions count on. In place of {key} stands the key. Those without it are sums of all keys. Absent if they count on none."`
	Share       *share      `json:"share,omitempty" doc:"What this process acquires from Redis at once; absent if Redis decides about every take. All processes together keep to max all the same."`
}

// counters are the names of a limit's counters. {key} stands for the key.
type counters struct {
	Allowed     []string `json:"allowed,omitempty" doc:"Those of hits that were allowed." example:"[\"sum.usage.login\",\"usage.login.{key}\"]"`
	Refused     []string `json:"refused,omitempty" doc:"Those of hits that were refused." example:"[\"sum.refused.login\",\"refused.login.{key}\"]"`
	Returned    []string `json:"returned,omitempty" doc:"Those of hits that were given back, or settled away." example:"[\"back.login.{key}\"]"`
	WouldRefuse []string `json:"would_refuse,omitempty" doc:"Those of hits that a limit in shadow mode would have refused." example:"[\"try.login.{key}\"]"`
	Nearly      []string `json:"nearly,omitempty" doc:"Those of takes after which nearly all is used." example:"[\"nearly.login.{key}\"]"`
}

func countersOf(l *limit.Limit) *counters {
	if l.Count == (limit.Count{}) {
		return nil
	}
	of := func(names limit.CounterNames) (out []string) {
		for _, name := range names {
			if name != "" {
				out = append(out, name.Of(l.Name, "{key}"))
			}
		}
		return out
	}
	return &counters{of(l.Count.Allowed), of(l.Count.Refused), of(l.Count.Returned), of(l.Count.WouldRefuse),
		of(l.Count.Nearly)}
}

type share struct {
	Hits    int64   `json:"hits" doc:"How many hits at most." example:"100"`
	For     float64 `json:"for" doc:"For how many seconds. Then unspent hits are given back." example:"1"`
	Unspent int64   `json:"unspent" doc:"How many unspent hits this process has, of all keys: others cannot use them." example:"37"`
}

// state copies what is counted under the lock, so that one answer is of one moment.
func (u *usage) state(now time.Time) LimitState {
	u.mu.Lock()
	defer u.mu.Unlock()
	minute, seconds := u.lastMinute(now)
	rate := func(o outcome) float64 { return float64(minute[o]) / seconds }
	return LimitState{
		Since: u.since.UTC(), Allowed: u.total[outcomeAllowed], Refused: u.total[outcomeRefused],
		Failed: u.total[outcomeFailed], WouldRefuse: u.total[outcomeWouldRefuse],
		AllowedRate: rate(outcomeAllowed), RefusedRate: rate(outcomeRefused), FailedRate: rate(outcomeFailed),
		WouldRate: rate(outcomeWouldRefuse),
	}
}
