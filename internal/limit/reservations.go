package limit

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"tallyroll/internal/platform/human"
)

const (
	// MinReservation and MaxReservation bound the length of a reservation.
	MinReservation = time.Second
	MaxReservation = time.Hour
	// MaxID bounds the id of a take or reservation, in bytes.
	MaxID = 128

	actionSettle, actionRenew = "settle", "renew" // of lua/settle.lua
)

// OnExpiry is what the hits of a reservation become that ends and was not settled.
type OnExpiry string

const (
	// ExpiryCounts counts them at the end of the reservation, because its holder has probably used them.
	ExpiryCounts OnExpiry = "count"
	// ExpiryReleases counts none.
	ExpiryReleases OnExpiry = "release"
)

// OnExpiries are all of them. The first is the default.
var OnExpiries = []OnExpiry{ExpiryCounts, ExpiryReleases}

// isReservable reports whether hits of the limit can be reserved.
func (l *Limit) isReservable() bool { return l.Name != "" && l.Policy != Concurrent }

// countsAfter returns how long a reservation that is not settled counts after its end.
func (l *Limit) countsAfter() time.Duration {
	if l.OnExpiry == ExpiryReleases {
		return 0
	}
	return l.Window
}

// isLeased reports whether what is taken is kept by the name of a lease or an id, and not as hits.
func (t *Take) isLeased() bool { return t.Limit.Policy == Concurrent || t.Reserve > 0 }

// lease returns the name of a slot's lease, or the id of a reservation.
func (t *Take) lease() string {
	if t.Limit.Policy == Concurrent {
		return t.Lease
	}
	return t.ID
}

// open returns how long a slot or reservation lasts if it is not renewed.
func (t *Take) open() time.Duration {
	if t.Reserve > 0 {
		return t.Reserve
	}
	return t.Limit.Window
}

// length returns how long a slot or reservation counts if it is not renewed, released or settled.
func (t *Take) length() time.Duration {
	if t.Reserve > 0 {
		return t.Reserve + t.Limit.countsAfter()
	}
	return t.Limit.Window
}

// checkID checks the id of a take, and the length of a reservation.
func (t *Take) checkID() error {
	switch {
	case t.Reserve != 0 && !t.Limit.isReservable():
		return &TakeError{*t, "limit", "nothing can be reserved: only limits with a name that count hits have reservations"}
	case t.Reserve != 0 && (t.Reserve < MinReservation || t.Reserve > MaxReservation):
		return &TakeError{*t, "ttl", fmt.Sprintf("%s: allowed is %s to %s", human.FormatDuration(t.Reserve), human.FormatDuration(MinReservation), human.FormatDuration(MaxReservation))}
	case t.Reserve != 0 && t.N < 1:
		return &TakeError{*t, "n", fmt.Sprintf("%d: a reservation has 1 hit or more", t.N)}
	case t.ID == "" && t.Reserve == 0:
		return nil
	case t.Limit.Policy == Concurrent:
		return &TakeError{*t, "id", "not under a limit with the policy concurrent: the name of its lease does the same"}
	case !IsID(t.ID):
		return &TakeError{*t, "id", fmt.Sprintf("allowed are 1 to %d bytes of UTF-8 without control characters", MaxID)}
	}
	return nil
}

// IsID reports whether a text can be the id of a take or reservation.
func IsID(text string) bool {
	return text != "" && len(text) <= MaxID && utf8.ValidString(text) && !strings.ContainsFunc(text, unicode.IsControl)
}

// companions returns a request's keys as the scripts expect them: those of the takes, of what is reserved of
// their limits, and with ids those of the ids.
//
//	<ns>:{<tag>}:limit:reserved:<policy>:<window>:<limit>:<key>
//	<ns>:{<tag>}:limit:id:<bytes of the id>:<id>:<policy>:<window>:<limit>:<key>
func companions(r *request) []string {
	out := append(make([]string, 0, 3*len(r.keys)), r.keys...)
	for _, key := range r.keys {
		out = append(out, reservedKey(key))
	}
	for i := 0; r.ids && i < len(r.keys); i++ {
		out = append(out, idKey(r.keys[i], r.takes[i].ID))
	}
	return out
}

func reservedKey(key string) string { return insertKind(key, "reserved:") }

func idKey(key, id string) string { return insertKind(key, "id:"+strconv.Itoa(len(id))+":"+id+":") }

func insertKind(key, kind string) string {
	const before = "}:limit:"
	i := strings.Index(key, before) + len(before)
	return key[:i] + kind + key[i:]
}

// settleResult is what became of a reservation. lua/settle.lua has the same numbers.
type settleResult int64

const (
	settleUnknown settleResult = iota
	settleDone
	settleRepeated
	settleDiffers // it was settled with another number
	settleEnded
)

// unknownAction is what the script does with a reservation that Redis does not know.
type unknownAction int

const (
	refuseUnknown unknownAction = iota
	countUnknown                // because this process gave it out without Redis
	passUnknown                 // because a limit in shadow mode may not have had it
)

// settled is a script's result for one reservation.
type settled struct {
	result   settleResult
	estimate int64 // of the hits in the window, afterwards
	n        int64 // that it was settled with
	ends     int64 // Unix milliseconds by Redis's clock
}

// Settlement is what became of a reservation.
type Settlement struct {
	Take Take
	// Settled is how many hits were counted for it. Repeated means that this was done before.
	Settled  int64
	Repeated bool
	// Remaining is how many more hits would be allowed now, and Over how many there are beyond max.
	Remaining, Over int64
	// Ends is when a renewed reservation ends, by Redis's clock.
	Ends   time.Time
	Source Source
}

// ReservationError means that a reservation cannot be settled or renewed.
type ReservationError struct {
	Take Take
	// Ended is when it ended; it is zero if the reservation is unknown or was settled.
	Ended time.Time
	// Settled is how many hits it was settled with, or -1 if it was not.
	Settled int64
}

func (e *ReservationError) Error() string {
	became := "were counted"
	if e.Take.Limit.OnExpiry == ExpiryReleases {
		became = "were released"
	}
	switch {
	case !e.Ended.IsZero():
		return fmt.Sprintf("the reservation %.64q ended at %s, and its hits %s then", e.Take.ID, e.Ended.Format(time.RFC3339Nano), became)
	case e.Settled >= 0:
		return fmt.Sprintf("the reservation %.64q was settled with %d hits", e.Take.ID, e.Settled)
	}
	return fmt.Sprintf("there is no reservation %.64q of this limit and key: it was never made, or was settled or ended over ten minutes ago", e.Take.ID)
}

// IDError means that the id of a take was used for another one: with other hits, or for a reservation.
type IDError struct{ Take Take }

func (e *IDError) Error() string {
	return fmt.Sprintf("the id %.64q was used for another take of this limit and key within the last ten minutes", e.Take.ID)
}

// Settle counts the hits N of each take, whose ID is that of its reservation, and frees what is reserved. N
// may be larger than what was reserved: the hits have happened. All are settled or none, but those of keys on
// different nodes of a cluster in turn. Settling again with the same N changes nothing.
//
// The error is a *ReservationError if a reservation is unknown or has ended, or was settled with another N.
// Otherwise it is one of Take's. Without Redis it is an *UnavailableError, unless this process gave out all
// of the reservations without Redis.
func (l *Limiter) Settle(ctx context.Context, takes []Take) ([]Settlement, error) {
	for i := range takes {
		t := &takes[i]
		if most := int64(MaxLogTake); t.Limit.Policy == Log && t.N > most {
			return nil, &TakeError{*t, "n", fmt.Sprintf("%d hits of the policy log at once: at most %d are allowed", t.N, most)}
		}
	}
	return l.settle(ctx, actionSettle, takes)
}

// RenewReservations extends reservations, whose ids the takes have, to the length Reserve from now. Errors
// are as in Settle.
func (l *Limiter) RenewReservations(ctx context.Context, takes []Take) ([]Settlement, error) {
	renewed := slices.Clone(takes)
	for i := range renewed {
		renewed[i].N = takes[i].Reserve.Milliseconds()
	}
	return l.settle(ctx, actionRenew, renewed)
}

func (l *Limiter) settle(ctx context.Context, action string, takes []Take) ([]Settlement, error) {
	if i := slices.IndexFunc(takes, func(t Take) bool { return t.Limit.Unlimited }); i >= 0 { // it keeps nothing
		out, err := l.settle(ctx, action, slices.Delete(slices.Clone(takes), i, i+1))
		if err != nil {
			return nil, err
		}
		own := Settlement{Take: takes[i], Remaining: MaxHits, Source: SourceMemory, Ends: l.now().Add(takes[i].Reserve).UTC()}
		if action != actionRenew {
			own.Settled = takes[i].N
		}
		return slices.Insert(out, i, own), nil
	}
	all := request{takes: takes, keys: make([]string, len(takes)), ids: true}
	for i := range takes {
		checked := takes[i]
		checked.N = 1
		checked.Reserve = max(checked.Reserve, MinReservation)
		if err := checked.checkID(); err != nil {
			return nil, err
		}
		all.keys[i] = l.key(&takes[i])
		if slices.Contains(all.keys[:i], all.keys[i]) {
			return nil, &TakeError{takes[i], "key", "the same limit and key twice: name each reservation once"}
		}
	}
	var out []Settlement
	most := l.fallback.remote.together(&all)
	for begin := 0; begin < len(takes); begin += most {
		indexes := make([]int, 0, most)
		for i := begin; i < min(begin+most, len(takes)); i++ {
			indexes = append(indexes, i)
		}
		part := all.part(indexes)
		done, err := l.settlePart(ctx, action, &part)
		if err != nil {
			return nil, err
		}
		out = append(out, done...)
	}
	return out, nil
}

// settlePart settles or renews with one script.
func (l *Limiter) settlePart(ctx context.Context, action string, r *request) (out []Settlement, err error) {
	now, accounts := l.now(), l.fallback.accounts
	unknown := make([]unknownAction, len(r.takes))
	for i := range r.takes {
		t := &r.takes[i]
		switch {
		case t.Limit.Fail == FailLocal && accounts.owesLease(r.keys[i], t, now):
			unknown[i] = countUnknown
		case t.Limit.Mode == Shadow:
			unknown[i] = passUnknown
		}
	}
	var results []settled
	down, err := l.fallback.call(ctx, r.keys[0], func(ctx context.Context) (err error) {
		results, err = l.store.settle(ctx, action, *r, unknown)
		return err
	})
	switch {
	case down != nil:
		return accounts.settle(action, r, now, down)
	case err != nil:
		return nil, err
	}
	for i, s := range results {
		t := &r.takes[i]
		switch s.result {
		case settleEnded:
			return nil, &ReservationError{*t, time.UnixMilli(s.ends).UTC(), -1}
		case settleDiffers:
			return nil, &ReservationError{*t, time.Time{}, s.n}
		case settleUnknown:
			if unknown[i] == countUnknown { // a renewal: this process holds it until it is settled
				return accounts.settle(action, r, now, errDown)
			}
			return nil, &ReservationError{*t, time.Time{}, -1}
		}
	}
	for i, s := range results {
		l.refusals.forget(r.keys[i])
		if r.takes[i].Limit.Fail == FailLocal {
			accounts.confirmSettled(action, &r.takes[i], r.keys[i], s.result == settleRepeated, now)
		}
		out = append(out, newSettlement(&r.takes[i], s, SourceRedis))
	}
	return out, nil
}

func newSettlement(t *Take, s settled, source Source) Settlement {
	return Settlement{
		Take: *t, Settled: s.n, Repeated: s.result == settleRepeated, Source: source, Ends: time.UnixMilli(s.ends).UTC(),
		Remaining: max(0, t.Limit.Max-s.estimate), Over: max(0, s.estimate-t.Limit.Max),
	}
}

// confirmSettled records what Redis has counted for a reservation, or its new length. If that is repeated, it
// is recorded already, unless the first reply was lost: then the reservation is still here.
func (a *accounts) confirmSettled(action string, t *Take, key string, repeated bool, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, isHere := a.leases.byKey[key][t.lease()]
	switch {
	case action == actionRenew:
		a.leases.extend(t, key, now, false)
		return
	case repeated && !isHere:
		return
	}
	a.leases.remove(key, t.lease())
	a.findOrPut(key).Adjust(now, t.Limit.Window, t.N)
}

// settle settles or renews, without Redis, reservations that this process gave out without Redis. If it did
// not give out all of them, the error is an *UnavailableError, and none is changed.
func (a *accounts) settle(action string, r *request, now time.Time, why error) (out []Settlement, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range r.takes {
		t := &r.takes[i]
		held := a.leases.byKey[r.keys[i]][t.lease()]
		if t.Limit.Fail != FailLocal || !held.owed || held.inRedis || !now.Before(held.open) {
			return nil, &UnavailableError{t.Limit, &downError{why}}
		}
	}
	for i := range r.takes {
		t, key := &r.takes[i], r.keys[i]
		s := settled{result: settleDone, ends: now.Add(t.Reserve).UnixMilli()}
		if action == actionRenew {
			a.leases.extend(t, key, now, true)
		} else {
			a.leases.remove(key, t.lease())
			own := a.findOrPut(key)
			own.Adjust(now, t.Limit.Window, t.N)
			own.owed, s.n = own.owed+t.N, t.N
		}
		v := a.findOrPut(key).At(now, t.Limit.Window)
		s.estimate = v.Estimate() + a.leases.sum(key, "", now)
		out = append(out, newSettlement(t, s, SourceLocal))
	}
	return out, nil
}
