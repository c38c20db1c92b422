package limit

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"tallyroll/internal/hit"
	"tallyroll/internal/platform/human"
	"tallyroll/internal/window/calendar"
)

const (
	MinWindow = time.Second
	MaxWindow = 366 * 24 * time.Hour
	// MaxHits bounds max under the policy Cells, and the hits of a request: a million dollars in micro-dollars.
	MaxHits = 1_000_000_000_000
	// MaxExactHits bounds max under Log and Stream: 100,000 stored hits take some 13 MB of Redis per key.
	MaxExactHits = 100_000
	// MaxLogTake bounds the hits of a request under Log: adding 1000 blocks Redis for about a millisecond.
	MaxLogTake = 1000
	// MaxSlots bounds max under the policy Concurrent: 10,000 slots take some 1 MB of Redis per key.
	MaxSlots = 10_000
	// MaxShare bounds how long a process keeps a share, and so does a part of the window.
	MaxShare        = time.Minute
	sharesPerWindow = 20
)

// Mode is what a limit does with a take that does not fit.
type Mode string

const (
	// Enforce refuses it.
	Enforce Mode = "enforce"
	// Shadow allows it, does not count it, and reports that it would have been refused.
	Shadow Mode = "shadow"
)

// Modes are all modes. The first is the default.
var Modes = []Mode{Enforce, Shadow}

// Share is what a process reserves of a limit at once, to decide by itself. The zero Share reserves nothing.
type Share struct {
	Hits int64         // at most
	For  time.Duration // then what is not spent is given back; at most MaxShare and a twentieth of the window
}

// Fail is what happens to a take while Redis is unavailable.
type Fail string

const (
	// FailLocal decides with a ring of cells in this process.
	FailLocal Fail = "local"
	// FailOpen allows every take and counts nothing.
	FailOpen Fail = "open"
	// FailClosed refuses every take with an *UnavailableError.
	FailClosed Fail = "closed"
)

// Fails are all fail modes. The first is the default.
var Fails = []Fail{FailLocal, FailOpen, FailClosed}

// Limit is the number of hits that a key may have in a rolling window.
type Limit struct {
	Name   string // empty if the numbers come with the request
	Window time.Duration
	// Period is what hits count in, if that is not a rolling window; Window is the longest then.
	Period *calendar.Period
	Max    int64 // 0 refuses always, and only with a name
	Policy Policy
	Fail   Fail
	Mode   Mode
	Share  Share
	// AtMost bounds the max that a take gives itself; 0: it gives none.
	AtMost int64
	// TTL is how long the ids of takes are remembered, unless a take says so. 0 is the default.
	TTL time.Duration
	// Unlimited allows every take, and counts none. Max is 0 then.
	Unlimited bool
	Count     Count
}

// MaxTake returns the most hits that a request can have under the limit.
func (l *Limit) MaxTake() int64 {
	if most := l.Policy.Traits().MaxTake; most > 0 {
		return min(l.Max, most)
	}
	return l.Max
}

// isFixed reports whether the limit decides without hits, because it always allows or refuses them.
func (l *Limit) isFixed() bool { return l.Unlimited || l.Max == 0 }

// FieldError is about one field of a limit: window, max, policy, fail, mode, share or ttl.
type FieldError struct{ Field, Message string }

func (e *FieldError) Error() string { return e.Field + ": " + e.Message }

// Check sets defaults and refuses what is out of bounds. The error is a *FieldError.
func (l *Limit) Check() error {
	if l.Policy == "" && l.Period != nil {
		l.Policy = Fixed
	}
	if l.Policy == "" {
		l.Policy = table[0].Policy
	}
	if l.Fail == "" {
		l.Fail = Fails[0]
	}
	if l.Mode == "" {
		l.Mode = Modes[0]
	}
	t, policies := l.Policy.Traits(), Policies
	if l.Name != "" {
		policies = NamedPolicies
	}
	if t.Policy == "" || t.Slots && l.Name == "" {
		return &FieldError{"policy", fmt.Sprintf("%.64q: must be one of %s", string(l.Policy), list(policies()))}
	}
	if !slices.Contains(Modes, l.Mode) {
		return &FieldError{"mode", fmt.Sprintf("%q: must be one of %s", string(l.Mode), list(Modes))}
	}
	if !slices.Contains(Fails, l.Fail) {
		return &FieldError{"fail", fmt.Sprintf("%q: must be one of %s", string(l.Fail), list(Fails))}
	}
	if l.Period != nil && !t.Turns {
		return &FieldError{"policy", fmt.Sprintf("%s: the windows of a calendar have the policy fixed", l.Policy)}
	}
	if l.TTL != 0 && !t.Settles {
		return &FieldError{"ttl", fmt.Sprintf("not with the policy %s, whose takes cannot be settled", l.Policy)}
	}
	if l.TTL != 0 && (l.TTL < MinTTL || l.TTL > MaxWindow) {
		return &FieldError{"ttl", fmt.Sprintf("%s: must be %s to %s", human.FormatDuration(l.TTL),
			human.FormatDuration(MinTTL), human.FormatDuration(MaxWindow))}
	}
	if l.Window < MinWindow || l.Window > MaxWindow {
		return &FieldError{"window", fmt.Sprintf("%s: must be %s to %s", human.FormatDuration(l.Window),
			human.FormatDuration(MinWindow), human.FormatDuration(MaxWindow))}
	}
	least := int64(0)
	if l.Name == "" {
		least = 1
	}
	if l.Unlimited && l.Max != 0 {
		return &FieldError{"max", "not together with unlimited, which has none"}
	}
	if l.Max < least || l.Max > t.Max {
		return &FieldError{"max", fmt.Sprintf("%d: must be %d to %d with the policy %s", l.Max, least, t.Max, l.Policy)}
	}
	return l.checkShare()
}

func (l *Limit) checkShare() error {
	share, most, longest := l.Share, l.MaxTake(), min(l.Window/sharesPerWindow, MaxShare)
	switch {
	case share == Share{}, l.isFixed(): // so that max can be 0 for a while
		return nil
	case l.Policy.Traits().Slots:
		return &FieldError{"share", fmt.Sprintf("not with the policy %s: only Redis records which slots are held",
			l.Policy)}
	case l.Mode == Shadow:
		return &FieldError{"share", "not with mode: shadow, in which Redis decides about every take"}
	case most < 2:
		return &FieldError{"share", "max is 1: a share has 2 hits or more"}
	case share.Hits < 2 || share.Hits > most:
		return &FieldError{"share", fmt.Sprintf("%d hits: must be 2 to %d", share.Hits, most)}
	case longest < MinWindow:
		return &FieldError{"share", fmt.Sprintf("not with a window below %s: a share lasts 1s or more, and at most "+
			"a twentieth of the window", human.FormatDuration(sharesPerWindow*MinWindow))}
	case share.For < MinWindow || share.For > longest:
		return &FieldError{"share", fmt.Sprintf("for %s: must be %s to %s, a twentieth of the window and at most 1m",
			human.FormatDuration(share.For), human.FormatDuration(MinWindow), human.FormatDuration(longest))}
	}
	return nil
}

// Adhoc returns the limit of a request that gives the numbers itself. The error is a *FieldError.
func Adhoc(length time.Duration, most int64, policy Policy) (*Limit, error) {
	return (&Limit{Policy: policy}).WithNumbers(length, most)
}

// WithNumbers returns the limit with a request's window and max. If the window is the same, both share hits.
// A share that does not fit them is left out. The error is a *FieldError.
func (l *Limit) WithNumbers(length time.Duration, most int64) (*Limit, error) {
	out := *l
	out.Window, out.Max, out.Unlimited = length, most, false
	if out.checkShare() != nil {
		out.Share = Share{}
	}
	return &out, out.Check()
}

// KeyOf makes a key of any bytes, because clients choose what keys are made of, and must not evade a limit by
// what is no name. What can be a counter's name stays as it is, so that a limit's counters have its keys. The
// rest is hashed.
func KeyOf(text string) string {
	if hit.CheckName([]byte(text)) == nil {
		return text
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(text)))
}

// Take is a request for n hits of a key under a limit. A negative n gives hits back; 0 counts nothing.
type Take struct {
	Limit  *Limit
	Caller string // its key: takes of one caller share a hash tag
	Key    string // hits are kept under this key
	N      int64
	// Lease names the slot that a take under Concurrent acquires. Do not reuse it after its end.
	Lease string
	// ID makes the take one that can be repeated and settled, as long as ID is remembered for the limit and key:
	// for TTL, or if that is 0 for that of the limit. A refused take leaves no trace. Once makes a take whose ID
	// is remembered an *IDError, even if it is the same, and a settlement of what was settled before.
	ID   string
	TTL  time.Duration
	Once bool
	// Happened lets only Redis refuse the take: what memory refuses of hits that have happened would be lost.
	Happened bool
}

// TakeError means that a take is invalid, alone or among the others of its request.
type TakeError struct {
	Take           Take
	Field, Message string // Field is n, key, lease, limit, id or ttl
}

func (e *TakeError) Error() string { return e.Message }

// NewLease returns a unique name of a lease.
func NewLease() string { return rand.Text() }

// Source is where a decision comes from.
type Source string

const (
	SourceRedis  Source = "redis"
	SourceMemory Source = "memory" // Redis had refused the same, and until when; or the limit is fixed
	SourceLocal  Source = "local"  // Redis could not be asked: the limit's fail mode decided
	SourceShare  Source = "share"  // Redis had allowed this process hits in advance
)

// Decision is about one take.
type Decision struct {
	Take Take
	// Allowed is always true under a limit in shadow mode.
	Allowed bool
	// Shadow is true in shadow mode. WouldAllow is the decision in the mode Enforce.
	Shadow, WouldAllow bool
	// Certain is false without Redis, or if it is unknown which hits of the oldest cell are still in the
	// window and they decide.
	Certain bool
	// Remaining is how many more hits would be allowed now; MaxHits under an unlimited limit.
	Remaining int64
	// RetryAfter is the time until the take would be allowed if no other hits came; 0 if it is allowed. From
	// memory it can be too short, if the remembered refusal was of fewer hits. It is a window if the limit
	// always refuses.
	RetryAfter time.Duration
	Source     Source
	// Turn is the time until all hits stop counting, because their period ends; 0 if the window rolls.
	Turn time.Duration
	// Lower and Upper bound the hits in the window now. They are equal under Log and Stream.
	Lower, Upper int64
	// Ends is when the lease ends unless it is renewed, by Redis's clock, and EndsIn the time until then.
	// They are zero without a lease.
	Ends   time.Time
	EndsIn time.Duration
	// Repeated means that the take was counted before, by its ID, or settled with the same number. The numbers
	// are those of now.
	Repeated bool
	// Settled is the number that the take was settled with; nil if it was not. Over is how many hits there are
	// beyond max then.
	Settled *int64
	Over    int64

	change int64 // by how many hits this decision changed what was counted
}

// Answer decides takes of one request.
type Answer struct {
	// Allowed is true if every take was allowed. Otherwise none was counted.
	Allowed bool
	// Decisions are in the order of the takes.
	Decisions []Decision
}

// Decisive returns the refusal with the longest wait, or without a refusal, the decision with the least
// remaining. It returns one in shadow mode only if all are.
func (a *Answer) Decisive() *Decision {
	out := &a.Decisions[0]
	for i := range a.Decisions[1:] {
		d := &a.Decisions[i+1]
		switch {
		case out.Shadow != d.Shadow:
			if out.Shadow {
				out = d
			}
		case out.WouldAllow != d.WouldAllow:
			if out.WouldAllow {
				out = d
			}
		case d.WouldAllow && d.Remaining < out.Remaining, !d.WouldAllow && d.RetryAfter > out.RetryAfter:
			out = d
		}
	}
	return out
}

// Shadowed reports whether any limit is in shadow mode, and whether all takes would be allowed if none were.
func (a *Answer) Shadowed() (any, wouldAllow bool) {
	wouldAllow = true
	for i := range a.Decisions {
		any = any || a.Decisions[i].Shadow
		wouldAllow = wouldAllow && a.Decisions[i].WouldAllow
	}
	return any, wouldAllow
}

// PolicyName is the limit's name in the fields: default without one, because the draft requires a name.
func (l *Limit) PolicyName() string { return cmp.Or(l.Name, "default") }

// RateFields returns the fields RateLimit-Policy and RateLimit of draft-ietf-httpapi-ratelimit-headers-11,
// with one item per name: that of the decisive take.
//
//	RateLimit-Policy: "login";q=5;w=60     5 hits in 60 seconds
//	RateLimit: "login";r=4;t=60            4 available within 60 seconds; if refused: ask again in t seconds
//
// Limits in shadow mode are in neither, because a client that heeds the fields would hold back for them, and
// unlimited ones have no quota.
// Slots have the draft's own unit and no window: "exports";q=3;qu="concurrent-requests". Since revision 11, r
// and t are the available quota and its effective window, which need no reset: a rolling window has none.
func (a *Answer) RateFields() (policy, rate string) {
	var names []string
	byName := make(map[string]Answer, 1)
	for _, d := range a.Decisions {
		if d.Shadow || d.Take.Limit.Unlimited {
			continue
		}
		name := d.Take.Limit.PolicyName()
		group, known := byName[name]
		if !known {
			names = append(names, name)
		}
		group.Decisions = append(group.Decisions, d)
		byName[name] = group
	}
	var policies, rates []string
	for _, name := range names {
		group := byName[name]
		d := group.Decisive()
		l := d.Take.Limit
		window := int64(l.Window / time.Second)
		t := strconv.FormatInt(window, 10)
		switch {
		case !d.Allowed:
			t = WholeSeconds(d.RetryAfter)
		case d.Turn > 0:
			t = WholeSeconds(d.Turn)
		}
		if unit := l.Policy.Traits().Unit; unit != "" {
			policies = append(policies, fmt.Sprintf("%q;q=%d;qu=%q", name, l.Max, unit))
		} else {
			policies = append(policies, fmt.Sprintf("%q;q=%d;w=%d", name, l.Max, window))
		}
		rates = append(rates, fmt.Sprintf("%q;r=%d;t=%s", name, d.Remaining, t))
	}
	return strings.Join(policies, ", "), strings.Join(rates, ", ")
}

// turn returns the number of the period that holds a moment, and the time until it ends.
func (l *Limit) turn(now time.Time) (number int64, left time.Duration) {
	milli := now.UnixMilli()
	if l.Period != nil {
		t := l.Period.Around(milli)
		return t.Numbers[1], time.Duration(t.Begins[2]-milli) * time.Millisecond
	}
	window := l.Window.Milliseconds()
	return milli / window, time.Duration(window-milli%window) * time.Millisecond
}

// ring is the window of a ring for the limit: one that turns forgets all at once, and nothing in between.
func (l *Limit) ring() time.Duration {
	if l.Policy.Traits().Turns {
		return 2 * l.Window
	}
	return l.Window
}

// WholeSeconds formats a wait for Retry-After: rounded up, and never 0, which clients read as "at once".
func WholeSeconds(d time.Duration) string {
	return strconv.FormatInt(max(1, int64((d+time.Second-1)/time.Second)), 10)
}
