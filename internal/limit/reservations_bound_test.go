package limit

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tallyroll/tests/stack"
)

// TestReservationsBound draws takes, reservations and settlements of two processes under the fail mode local,
// with trouble on the way: Redis is away or full, and requests and replies are lost. Whatever happens, what a
// process was allowed in any window, with what it has reserved, is at most max, except for what its
// settlements were larger than their reservations.
func TestReservationsBound(t *testing.T) {
	t.Parallel()
	client := stack.Redis(t, stack.RedisArgs("--appendonly", "no")).Client()
	var seen struct{ Schedules, Local, Settled, SettledLocally, Late, Refused int }
	rapid.Check(t, func(rt *rapid.T) {
		if seen.Schedules++; enough(seen.Schedules, 40) {
			return
		}
		l := &Limit{
			Name: "tokens", Window: boundWindow, Max: 10, Policy: rapid.SampledFrom(Policies).Draw(rt, "policy"), Fail: FailLocal,
			OnExpiry: rapid.SampledFrom(OnExpiries).Draw(rt, "on expiry"),
		}
		r := newReservers(t, client, 2)
		defer r.end()
		for _, p := range r.processes {
			p.limiter.namespace = fmt.Sprint("reserved-", seen.Schedules)
		}
		books := [2]reservedBook{{limit: l}, {limit: l}}
		var story []string
		for step := range rapid.IntRange(10, 50).Draw(rt, "steps") {
			r.at((r.now-worldStart)/1000 + rapid.SampledFrom([]int64{0, 0, 0, 0, 0, 1, 2, 29, 31, 60, 61}).Draw(rt, "seconds"))
			i := rapid.IntRange(0, 1).Draw(rt, "process")
			p, book := r.processes[i], &books[i]
			what := rapid.SampledFrom([]string{"", "", "", "lost", "unsent", "full", "away", "heal"}).Draw(rt, "trouble")
			if what == "heal" {
				r.away(i, false)
			}
			p.trouble.next(what)
			take := Take{Limit: l, Caller: "alice", Key: "alice", N: rapid.Int64Range(1, 5).Draw(rt, "n")}
			action := rapid.SampledFrom([]string{"take", "reserve", "reserve", "settle", "settle"}).Draw(rt, "action")
			var open *reservedEntry
			switch action {
			case "reserve":
				take.ID, take.Reserve = fmt.Sprint("id-", step), time.Duration(rapid.SampledFrom([]int64{5, 60}).Draw(rt, "ttl"))*time.Second
			case "settle":
				if open = book.open(rapid.IntRange(0, 3).Draw(rt, "which")); open == nil {
					p.trouble.next("")
					continue
				}
				take.ID, take.N = open.id, rapid.SampledFrom([]int64{0, 1, open.n, open.n + 1}).Draw(rt, "settled")
			}
			p.limiter.refusals.forget(p.limiter.key(&take))
			a, s, err := askReservation(t, p.limiter, action, take)
			var unavailable *UnavailableError
			if errors.As(err, &unavailable) { // perhaps done: it is repeated until there is an answer
				seen.Late++
				r.away(i, false)
				a, s, err = askReservation(t, p.limiter, action, take)
			}
			p.trouble.next("")
			var refused *ReservationError
			switch {
			case errors.As(err, &refused) && refused.Settled < 0: // it has ended, perhaps long ago
				open.closed = true
			case err != nil:
				rt.Fatalf("%v (%v)\n%s", err, errors.Unwrap(err), strings.Join(story, "\n"))
			case s != nil:
				seen.Settled++
				if s[0].Source == SourceLocal {
					seen.SettledLocally++
				}
				open.settled, open.at = take.N, r.now
			case !a.Allowed:
				seen.Refused++
			case action == "reserve":
				book.reserved = append(book.reserved, &reservedEntry{id: take.ID, n: take.N, end: a.Decisions[0].Ends.UnixMilli(), settled: -1})
			default:
				book.hits = append(book.hits, hits{r.now, take.N})
			}
			if a.Allowed && a.Decisions[0].Source == SourceLocal {
				seen.Local++
			}
			story = append(story, fmt.Sprintf("%d s: process %d, %q: %s %d %s %s: %s", (r.now-worldStart)/1000, i, what, action, take.N, take.ID, take.Reserve, outcomeText(a, s, err)))
			if used, over := book.used(r.now); used > l.Max+over {
				rt.Fatalf("%s, %s: process %d was allowed %d of %d, %d over\n%s", l.Policy, l.OnExpiry, i, used, l.Max, over, strings.Join(story, "\n"))
			}
		}
	})
	t.Logf("%+v", seen)
	if seen.Local == 0 || seen.Settled == 0 || seen.SettledLocally == 0 || seen.Late == 0 || seen.Refused == 0 {
		t.Error("the schedules miss what they are for")
	}
}

// reservedBook is what a process was allowed.
type reservedBook struct {
	limit    *Limit
	hits     []hits
	reserved []*reservedEntry
}

type reservedEntry struct {
	id          string
	n, end      int64
	settled, at int64 // settled is -1 before
	closed      bool  // it cannot be settled any more
}

// open returns one of the reservations that were not settled, or nil without one.
func (b *reservedBook) open(which int) *reservedEntry {
	var all []*reservedEntry
	for _, e := range b.reserved {
		if e.settled < 0 && !e.closed {
			all = append(all, e)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[which%len(all)]
}

// used returns the hits of the window that ends now, those reserved included, and by how much settlements in
// it were larger than their reservations.
func (b *reservedBook) used(now int64) (sum, over int64) {
	begin := now - b.limit.Window.Milliseconds()
	for _, h := range b.hits {
		if h.at > begin {
			sum += h.n
		}
	}
	for _, e := range b.reserved {
		switch {
		case e.settled >= 0 && e.at > begin:
			sum, over = sum+e.settled, over+max(0, e.settled-e.n)
		case e.settled < 0 && (e.end > now || b.limit.OnExpiry == ExpiryCounts && e.end > begin):
			sum += e.n
		}
	}
	return sum, over
}
