package limit

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/tests/stack"
)

// TestReservationsAgainstModel draws takes, give-backs and reservations with ids, settlements, renewals and
// ends, whose requests or replies are lost and repeated, by two processes that share a Redis. Every answer is
// the model's, so each hit counts once, and settled and reserved hits never pass max but by what settlements
// are larger than their reservations. All times are at the beginnings of cells, so that cells are exact.
// `make simulate-limits` draws more.
func TestReservationsAgainstModel(t *testing.T) {
	t.Parallel()
	client := stack.Redis(t, stack.RedisArgs("--appendonly", "no")).Client()
	var seen reservationsSeen
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		if round++; enough(round, 40) {
			return
		}
		if problem := playReservations(t, rt, client, heldWhole, fmt.Sprint("reservations-", round), &seen); problem != "" {
			rt.Fatal(problem)
		}
	})
	t.Logf("%+v", seen)
	if seen.Refused == 0 || seen.Repeated == 0 || seen.Settled == 0 || seen.Over == 0 || seen.Renewed == 0 || seen.Ended == 0 || seen.Conflicts == 0 || seen.Unknown == 0 {
		t.Error("the schedules miss what they are for")
	}
}

// TestPlantedBugsOfReservationsAreFound plants bugs in the scripts, one at a time. The model finds each.
func TestPlantedBugsOfReservationsAreFound(t *testing.T) {
	t.Parallel()
	client := stack.Redis(t, stack.RedisArgs("--appendonly", "no")).Client()
	for i, bug := range []struct{ name, file, right, wrong string }{
		{"a settlement that is repeated counts twice", "settle", "record.settled ~= n) and 3 or 2", "record.settled ~= n) and 3 or 1"},
		{"the end frees what was settled", "settle", "s.policy.add(KEYS[i], s, s.n)", "reservations.add(KEYS[takes + i], reservations.look(KEYS[takes + i], clock), clock, s.id, s.n, record.last)"},
		{"a reservation that is repeated reserves twice", "decide", "s.n > 0 and s.fits and not s.again", "s.n > 0 and s.fits"},
		{"what is reserved does not count", "decide", "s.count + s.reserved + n - max", "s.count + n - max"},
		{"what ends is always released", "decide", "s.n, s.ends + s.after)", "s.n, s.ends)"},
		{"a settlement frees nothing", "settle", "s.n - reservations.remove(KEYS[takes + i], s.id, record.n)", "s.n"},
		{"an id may be used again with other hits", "decide", "s.again = s.record.n == n and", "s.again ="},
		{"a reservation can be settled after its end", "settle", "record.last <= clock", "false"},
		{"a renewal does not last", "reservations", "redis.call('ZADD', key, 'XX', text(till), member(n, id))", ""},
		{"an id is forgotten while its reservation counts", "decide", "s.n, s.ends, s.ends + s.after)", "s.n, s.ends, s.ends)"},
		{"a give-back is not remembered", "decide", "ids.take(id, s.n)", ""},
	} {
		t.Run(bug.name, func(t *testing.T) {
			text := source(bug.file)
			require.Equal(t, 1, strings.Count(text, bug.right), bug.right)
			planted := newScripts(heldClock, 1_000_000, func(name string) string {
				if name == bug.file {
					return strings.Replace(text, bug.right, bug.wrong, 1)
				}
				return source(name)
			})
			for seed := range 400 {
				problem, seen := "", reservationsSeen{}
				rt := rapid.Custom(func(rt *rapid.T) bool {
					problem = playReservations(t, rt, client, planted, fmt.Sprint("planted-", i, "-", seed), &seen)
					return true
				})
				if rt.Example(seed); problem != "" {
					t.Logf("found by seed %d: %.300s", seed, problem)
					return
				}
			}
			t.Error("not found in 400 schedules")
		})
	}
}

type reservationsSeen struct{ Allowed, Refused, Repeated, Settled, Over, Renewed, Ended, Conflicts, Unknown int }

// reservedModel is what the limit of a key must say.
type reservedModel struct {
	limit *Limit
	reach int64 // how far back hits count, ms
	hits  []hits
	ids   map[string]*idModel
}

// idModel is a take or a reservation with an id.
type idModel struct {
	n           int64
	reserved    bool
	end, counts int64 // of a reservation: when it ends, and until when it counts
	settled     int64 // -1: it is not
	forgotten   int64 // when its id is
}

func (m *reservedModel) count(now int64) (sum int64) {
	for _, h := range m.hits {
		if h.at > now-m.reach {
			sum += h.n
		}
	}
	return sum + m.reserved(now)
}

func (m *reservedModel) reserved(now int64) (sum int64) {
	for _, r := range m.ids {
		if r.reserved && r.settled < 0 && r.counts > now {
			sum += r.n
		}
	}
	return sum
}

// give takes back the newest n hits.
func (m *reservedModel) give(now, n int64) {
	for i := len(m.hits) - 1; i >= 0 && n > 0 && m.hits[i].at > now-m.reach; i-- {
		less := min(n, m.hits[i].n)
		m.hits[i].n, n = m.hits[i].n-less, n-less
	}
}

// known returns the take or reservation that Redis remembers by an id.
func (m *reservedModel) known(id string, now int64) *idModel {
	if r := m.ids[id]; r != nil && r.forgotten >= now {
		return r
	}
	return nil
}

// open returns the ids of the reservations that can be settled.
func (m *reservedModel) open(now int64) (ids []string) {
	for _, id := range slices.Sorted(maps.Keys(m.ids)) {
		if r := m.ids[id]; r.reserved && r.settled < 0 && r.end > now {
			ids = append(ids, id)
		}
	}
	return ids
}

const idKept = 600_000 // ms

// playReservations plays a drawn schedule, and returns the first difference from the model, or nothing.
func playReservations(t *testing.T, rt *rapid.T, client *redis.Client, held *scriptSet, namespace string, seen *reservationsSeen) string {
	l := &Limit{
		Name: "tokens", Window: rapid.SampledFrom([]time.Duration{boundWindow, 20 * boundWindow}).Draw(rt, "window"), Max: 10, Policy: rapid.SampledFrom(Policies).Draw(rt, "policy"), Fail: FailClosed,
		OnExpiry: rapid.SampledFrom([]OnExpiry{"", ExpiryCounts, ExpiryReleases}).Draw(rt, "on expiry"),
	}
	cell := l.Window.Milliseconds() / 60
	m := &reservedModel{limit: l, reach: l.Window.Milliseconds(), ids: make(map[string]*idModel)}
	if l.Policy == Cells {
		m.reach += cell
	}
	var now atomic.Int64
	now.Store(worldStart)
	var processes []*boundProcess
	for range 2 {
		p := &boundProcess{trouble: &trouble{now: now.Load}}
		own := redis.NewClient(client.Options())
		defer own.Close()
		own.AddHook(p.trouble)
		p.limiter = New(own, namespace, time.Minute)
		p.limiter.store.scripts = held
		p.limiter.now = func() time.Time { return time.UnixMilli(now.Load()) }
		processes = append(processes, p)
	}
	var story []string
	for range rapid.IntRange(10, 60).Draw(rt, "steps") {
		at := now.Add(cell * rapid.SampledFrom([]int64{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 7, 30, 59, 60, 61, 600}).Draw(rt, "seconds"))
		require.NoError(t, setClock(t.Context(), client, hashTag("alice"), at).Err())
		p := processes[rapid.IntRange(0, 1).Draw(rt, "process")]
		action := rapid.SampledFrom([]string{"take", "take", "reserve", "reserve", "settle", "settle", "renew"}).Draw(rt, "action")
		open := m.open(at)
		known := (action == "settle" || action == "renew") && rapid.IntRange(0, 3).Draw(rt, "of those open") > 0
		if known && len(open) == 0 {
			action = "reserve"
		}
		take := Take{Limit: l, Caller: "alice", Key: "alice", ID: fmt.Sprint("id-", rapid.IntRange(1, 4).Draw(rt, "id")), N: rapid.Int64Range(1, 6).Draw(rt, "n")}
		if known && len(open) > 0 {
			take.ID = rapid.SampledFrom(open).Draw(rt, "open")
		}
		switch action {
		case "take":
			take.N = rapid.Int64Range(-3, 6).Draw(rt, "hits")
		case "settle":
			take.N = rapid.SampledFrom([]int64{0, 1, 3, 9, 12}).Draw(rt, "settled")
		default:
			take.Reserve = time.Duration(rapid.SampledFrom([]int64{1, 30, 60, 90}).Draw(rt, "ttl")) * time.Second
		}
		if id := m.known(take.ID, at); id != nil && rapid.IntRange(0, 2).Draw(rt, "again") > 0 { // else other numbers
			switch {
			case action == "settle" && id.settled >= 0:
				take.N = id.settled
			case action == "take" && !id.reserved, action == "reserve" && id.reserved:
				take.N = id.n
			}
		}
		for _, what := range rapid.SampledFrom([][]string{nil, nil, {"lost"}, {"unsent"}, {"lost", "lost"}}).Draw(rt, "trouble") {
			p.trouble.next(what)
			_, _, err := askReservation(t, p.limiter, action, take)
			require.ErrorAs(t, err, new(*UnavailableError))
		}
		p.trouble.next("")
		p.limiter.fallback.breaker.succeeded()
		p.limiter.refusals.forget(p.limiter.key(&take))
		a, s, err := askReservation(t, p.limiter, action, take)
		got := outcomeText(a, s, err)
		want := m.want(action, &take, at, seen)
		story = append(story, fmt.Sprintf("%d s: %s %+d %s %s: %s", (at-worldStart)/1000, action, take.N, take.ID, take.Reserve, got))
		if got != want {
			return fmt.Sprintf("%s, %s: want %s\n%s", l.Policy, l.OnExpiry, want, strings.Join(story, "\n"))
		}
		if a.Decisions != nil && !a.Allowed && l.Policy != Cells {
			if later := at + a.Decisions[0].RetryAfter.Milliseconds(); m.count(later)+take.N > l.Max {
				return fmt.Sprintf("%s: not allowed after %s\n%s", l.Policy, a.Decisions[0].RetryAfter, strings.Join(story, "\n"))
			}
		}
	}
	return ""
}

func askReservation(t *testing.T, l *Limiter, action string, take Take) (a Answer, s []Settlement, err error) {
	switch action {
	case "settle":
		s, err = l.Settle(t.Context(), []Take{take})
	case "renew":
		s, err = l.RenewReservations(t.Context(), []Take{take})
	default:
		a, err = l.Take(t.Context(), []Take{take})
	}
	return a, s, err
}

func outcomeText(a Answer, s []Settlement, err error) string {
	var used *IDError
	var refused *ReservationError
	switch {
	case errors.As(err, &used):
		return "conflict"
	case errors.As(err, &refused) && !refused.Ended.IsZero():
		return "ended"
	case errors.As(err, &refused) && refused.Settled >= 0:
		return fmt.Sprint("settled with ", refused.Settled)
	case errors.As(err, &refused):
		return "unknown"
	case err != nil:
		return err.Error()
	case s != nil:
		return fmt.Sprintf("done with %d, remaining %d, over %d, ends %d", s[0].Settled, s[0].Remaining, s[0].Over, s[0].Ends.UnixMilli())
	}
	d := a.Decisions[0]
	ends := int64(0)
	if a.Allowed && !d.Ends.IsZero() {
		ends = d.Ends.UnixMilli()
	}
	return fmt.Sprintf("allowed %t, remaining %d, reserved %d, ends %d", a.Allowed, d.Remaining, d.Reserved, ends)
}

// want does what the limiter must do, and returns what it must say. Whether it was repeated is not compared,
// because a request whose reply was lost is.
func (m *reservedModel) want(action string, t *Take, now int64, seen *reservationsSeen) string {
	id := m.known(t.ID, now)
	if action == "settle" || action == "renew" {
		return m.wantSettled(action, t, id, now, seen)
	}
	most, ends := m.limit.Max, int64(0)
	switch {
	case id != nil && (id.n != t.N || id.reserved != (t.Reserve > 0)):
		seen.Conflicts++
		return "conflict"
	case id != nil:
		seen.Repeated++
		ends = id.end
	case t.N > 0 && m.count(now)+t.N > most:
		seen.Refused++
		return fmt.Sprintf("allowed false, remaining %d, reserved %d, ends 0", max(0, most-m.count(now)), m.reserved(now))
	default:
		seen.Allowed++
		r := &idModel{n: t.N, settled: -1, forgotten: now + idKept}
		switch {
		case t.Reserve > 0:
			r.reserved, r.end = true, now+t.Reserve.Milliseconds()
			r.counts = r.end + m.limit.countsAfter().Milliseconds()
			r.forgotten, ends = r.counts+idKept, r.end
		case t.N > 0:
			m.hits = append(m.hits, hits{now, t.N})
		default:
			m.give(now, -t.N)
		}
		if t.N != 0 { // which leaves no trace
			m.ids[t.ID] = r
		}
	}
	return fmt.Sprintf("allowed true, remaining %d, reserved %d, ends %d", max(0, most-m.count(now)), m.reserved(now), ends)
}

func (m *reservedModel) wantSettled(action string, t *Take, id *idModel, now int64, seen *reservationsSeen) string {
	switch {
	case id == nil, !id.reserved:
		seen.Unknown++
		return "unknown"
	case id.settled >= 0 && (action == "renew" || id.settled != t.N):
		seen.Conflicts++
		return fmt.Sprint("settled with ", id.settled)
	case id.settled >= 0:
	case id.end <= now:
		seen.Ended++
		return "ended"
	case action == "renew":
		seen.Renewed++
		id.end = now + t.Reserve.Milliseconds()
		id.counts = id.end + m.limit.countsAfter().Milliseconds()
		id.forgotten = id.counts + idKept
	default:
		seen.Settled++
		id.settled, id.forgotten = t.N, now+idKept
		if t.N > 0 {
			m.hits = append(m.hits, hits{now, t.N})
		}
	}
	count, most := m.count(now), m.limit.Max
	if count > most {
		seen.Over++
	}
	return fmt.Sprintf("done with %d, remaining %d, over %d, ends %d", max(0, id.settled), max(0, most-count), max(0, count-most), id.end)
}
