package limit

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/tests/stack"
)

// placeOf is a take of a place.
func placeOf(l *Limit, key, lease string) Take {
	return Take{Limit: l, Key: key, Under: key, N: 1, Lease: lease}
}

func concurrentLimit(most int64, fail Fail) *Limit {
	return &Limit{Name: "exports", Window: time.Minute, Max: most, Policy: Concurrent, Fail: fail, Mode: Enforce}
}

func (w *world) renew(take Take) Lease {
	w.t.Helper()
	lease, err := w.limiter.Renew(w.t.Context(), take)
	require.NoError(w.t, err)
	return lease
}

func (w *world) release(take Take) bool {
	w.t.Helper()
	held, err := w.limiter.Release(w.t.Context(), take)
	require.NoError(w.t, err)
	return held
}

// Places are acquired, kept, renewed and freed.
func testPlaces(t *testing.T, fresh func(*testing.T) *world) {
	w, l := fresh(t), concurrentLimit(2, FailClosed)
	a, b, c := placeOf(l, "alice", "a"), placeOf(l, "alice", "b"), placeOf(l, "alice", "c")
	want := func(d Decision, allowed bool, remaining, retry, ends int64) {
		t.Helper()
		at, in := int64(0), int64(0)
		if !d.Ends.IsZero() {
			at, in = d.Ends.UnixMilli()-worldStart, ends-(w.clock-worldStart)
		}
		if d.Allowed != allowed || !d.Certain || d.Remaining != remaining || d.RetryAfter.Milliseconds() != retry || at != ends || d.EndsIn.Milliseconds() != in {
			t.Errorf("%+v; want allowed %v, remaining %d, retry %d, ends %d", d, allowed, remaining, retry, ends)
		}
	}
	want(w.take(a).Decisions[0], true, 1, 0, 60_000)
	w.at(10_000)
	want(w.take(b).Decisions[0], true, 0, 0, 70_000)
	want(w.take(c).Decisions[0], false, 0, 50_000, 0)
	want(w.look(c).Decisions[0], false, 0, 50_000, 0)
	want(w.look(b).Decisions[0], true, 0, 0, 0) // it is held
	w.at(20_000)
	want(w.take(a).Decisions[0], true, 0, 0, 80_000) // again: it is not two, and lasts on
	if lease := w.renew(b); !lease.Held || lease.Ends.UnixMilli() != worldStart+80_000 || lease.EndsIn != time.Minute {
		t.Errorf("%+v", lease)
	}
	if w.renew(c).Held || w.release(c) {
		t.Error("a place is held that was never given out")
	}
	if !w.release(b) || w.release(b) || w.renew(b).Held {
		t.Error("a place is not released once")
	}
	want(w.take(c).Decisions[0], true, 0, 0, 80_000)
	w.at(79_999)
	want(w.take(b).Decisions[0], false, 0, 1, 0)
	w.at(80_000) // both end
	require.False(t, w.renew(a).Held, "a lease is renewed that has ended")
	want(w.take(b).Decisions[0], true, 1, 0, 140_000)
	w.at(60_000) // the clock goes back: nothing ends early
	want(w.take(c).Decisions[0], true, 0, 0, 120_000)
	want(w.take(a).Decisions[0], false, 0, 60_000, 0)
	w.at(-3_600_000) // by far
	want(w.take(a).Decisions[0], false, 0, 60_000, 0)
	if lease := w.renew(c); !lease.Held || lease.EndsIn.Milliseconds() > 60_001 {
		t.Errorf("%+v", lease)
	}
	w.at(-3_600_000 + 60_001)
	want(w.take(a).Decisions[0], true, 1, 0, -3_600_000+120_001)
}

// A place and hits of other limits are taken together or not at all.
func testPlacesTogether(t *testing.T, fresh func(*testing.T) *world) {
	for _, other := range []string{"alice", "bob"} {
		t.Run(other, func(t *testing.T) {
			w, l, hits := fresh(t), concurrentLimit(1, FailClosed), adhoc(t, time.Hour, 2, Log)
			first, second := placeOf(l, "alice", "a"), placeOf(l, "alice", "b")
			if a := w.take(first, takeOf(hits, other, 1)); !a.Allowed || a.Decisions[0].Ends.IsZero() {
				t.Fatalf("%+v", a)
			}
			if a := w.take(second, takeOf(hits, other, 1)); a.Allowed || a.Decisions[0].Allowed || !a.Decisions[0].Ends.IsZero() {
				t.Fatalf("%+v", a)
			}
			w.wantRemaining(hits, other, 1)
			w.release(first)
			if a := w.take(second, takeOf(hits, other, 2)); a.Allowed || !a.Decisions[0].Ends.IsZero() {
				t.Fatalf("%+v", a)
			}
			require.False(t, w.renew(second).Held, "a place is held though the take beside was refused")
			require.True(t, w.take(second, takeOf(hits, other, 1)).Allowed)
			// What was held before stays held, whatever becomes of the others.
			require.False(t, w.take(second, takeOf(hits, other, 1)).Allowed)
			require.True(t, w.renew(second).Held, "a place is lost that was asked for again")
		})
	}
}

func TestBadPlacesAreRefused(t *testing.T) {
	t.Parallel()
	w, l, hits := newWorld(t, backends[2].start(t), "bad"), concurrentLimit(2, FailLocal), adhoc(t, time.Minute, 5, Log)
	requireField := func(field string, err error) {
		t.Helper()
		var bad *LeaseError
		require.ErrorAs(t, err, &bad)
		require.Equal(t, field, bad.Field)
	}
	for _, c := range []struct {
		limit *Limit
		n     int64
		lease string
		field string
	}{
		{l, 1, "", "lease"}, {l, 1, "a b", "lease"}, {l, 1, strings.Repeat("a", 65), "lease"}, {hits, 1, "a", "lease"}, {l, 2, "a", "n"}, {l, -1, "a", "n"},
	} {
		take := placeOf(c.limit, "a", c.lease)
		take.N = c.n
		requireField(c.field, errOf(w.limiter.Take(t.Context(), []Take{take})))
	}
	requireField("limit", errOf(w.limiter.Renew(t.Context(), takeOf(hits, "a", 1))))
	requireField("lease", errOf(w.limiter.Release(t.Context(), takeOf(l, "a", 1))))
	require.Error(t, errOf(Adhoc(time.Minute, 5, Concurrent)), "a limit without a name has places")
}

// Without Redis, a process goes by the places that it has given out itself, and Redis learns of those it has not heard of.
func TestPlacesAreGivenOutWithoutRedis(t *testing.T) {
	t.Parallel()
	client := backends[2].start(t)
	var broken cut
	client.AddHook(hook(broken.process))
	w, l := newWorld(t, client, "away"), concurrentLimit(3, FailLocal)
	a, b, c, d := placeOf(l, "alice", "a"), placeOf(l, "alice", "b"), placeOf(l, "alice", "c"), placeOf(l, "alice", "d")
	take := func(take Take) (bool, Source) {
		t.Helper()
		answer, err := w.limiter.Take(t.Context(), []Take{take})
		require.NoError(t, err)
		w.clock += 1000
		return answer.Allowed, answer.Decisions[0].Source
	}
	take(a)
	broken.on = true
	for i, c := range []struct {
		take    Take
		allowed bool
	}{{b, true}, {a, true}, {c, true}, {d, false}} {
		if allowed, from := take(c.take); allowed != c.allowed || from != FromLocal {
			t.Errorf("%d: %v from %s", i, allowed, from)
		}
	}
	if lease, err := w.limiter.Renew(t.Context(), a); err != nil || !lease.Held || lease.Source != FromLocal {
		t.Errorf("%+v %v", lease, err)
	}
	var unavailable *UnavailableError
	if held, err := w.limiter.Release(t.Context(), a); held || !errors.As(err, &unavailable) { // Redis has it
		t.Error(held, err)
	}
	if held, err := w.limiter.Release(t.Context(), c); !held || err != nil { // Redis has never heard of it
		t.Error(held, err)
	}
	broken.on = false
	w.at(w.clock + 1000 - worldStart) // then it is tried again
	if allowed, from := take(c); !allowed || from != FromRedis {
		t.Errorf("%v from %s", allowed, from)
	}
	if allowed, _ := take(d); allowed {
		t.Error("b is held, though Redis does not know it")
	}
	if !w.renew(b).Held { // now it does
		t.Error("a lease is lost that was given out without Redis")
	}
	other := newWorld(t, client, "away")
	other.at(w.clock - worldStart)
	require.EqualValues(t, 0, other.remaining(l, "alice"))
	for _, fail := range []Fail{FailOpen, FailClosed} {
		broken.on = true
		w.limiter.breaker = breaker{}
		l := concurrentLimit(1, fail)
		for range 2 {
			answer, err := w.limiter.Take(t.Context(), []Take{placeOf(l, "bob", NewLease())})
			lease, renewed := w.limiter.Renew(t.Context(), placeOf(l, "bob", "x"))
			if fail == FailOpen && (err != nil || !answer.Allowed || renewed != nil || !lease.Held) || fail == FailClosed && (!errors.As(err, &unavailable) || !errors.As(renewed, &unavailable)) {
				t.Errorf("%s: %+v %v, %+v %v", fail, answer, err, lease, renewed)
			}
		}
	}
}

// TestPlacesBound draws holders that work, die, ask again and give back, at processes that share a Redis whose clock goes
// back, and trouble on the way, as TestBound does. Whatever happens, no more than max hold a place at once if the limit is
// closed without Redis, and no more than max by one process if it is local. Without trouble, Redis decides exactly.
func TestPlacesBound(t *testing.T) {
	t.Parallel()
	client := stack.Redis(t, stack.RedisArgs("--appendonly", "no")).Client()
	for _, script := range append(heldScripts.decide[:], heldScripts.lease) {
		require.NoError(t, script.Load(t.Context(), client).Err())
	}
	var seen placesSeen
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		if round++; enough(round, 30) {
			return
		}
		s := newBoundRun(t, rt, client, fmt.Sprint("places-", round))
		defer s.end()
		s.limit = concurrentLimit(rapid.Int64Range(1, 4).Draw(rt, "max"), s.limit.Fail)
		for _, p := range s.processes {
			p.ahead.Store(max(0, p.ahead.Load()))
		}
		r := &placesRun{boundRun: s, seen: &seen, held: make(map[string]holder)}
		for range rapid.IntRange(10, 60).Draw(rt, "steps") {
			if problem := r.step(rt); problem != "" {
				rt.Fatal(problem + "\n" + strings.Join(s.story, "\n"))
			}
		}
		seen.Schedules++
	})
	t.Logf("%+v", seen)
	if seen.Allowed == 0 || seen.Refused == 0 || seen.Renewed == 0 || seen.Lost == 0 || seen.Released == 0 || seen.Undecided == 0 || seen.Local == 0 || seen.Again == 0 {
		t.Error("the schedules miss what they are for")
	}
}

type placesSeen struct{ Schedules, Allowed, Refused, Renewed, Lost, Released, Undecided, Local, Again int }

type placesRun struct {
	*boundRun
	seen   *placesSeen
	leases int
	held   map[string]holder // by lease: who was told that it has a place
	tried  []string          // leases of takes that nobody has decided
}

// holder believes in its place until then.
type holder struct {
	until   int64
	process int
}

// holders are how many believe in their places, of one process or of all.
func (r *placesRun) holders(process int) (n int64) {
	for _, h := range r.held {
		if h.until > r.now.Load() && (process < 0 || process == h.process) {
			n++
		}
	}
	return n
}

func (r *placesRun) step(rt *rapid.T) string {
	now := r.now.Add(boundCell * rapid.SampledFrom([]int64{0, 0, 0, 0, 1, 7, 19, 20, 59, 60, 61}).Draw(rt, "seconds"))
	i := rapid.IntRange(0, len(r.processes)-1).Draw(rt, "process")
	p, what := r.processes[i], ""
	if !r.healthy {
		what = rapid.SampledFrom([]string{"", "", "", "", "", "lost", "unsent", "full", "late", "later", "away", "heal", "Redis back"}).Draw(rt, "trouble")
	}
	if what == "Redis back" {
		r.behind += boundCell * rapid.Int64Range(1, 90).Draw(rt, "by")
	}
	require.NoError(r.t, setClock(r.t.Context(), r.client, tagOf("alice"), now-r.behind).Err())
	p.limiter.timeout = after(time.Minute)
	switch what {
	case "heal":
		p.heal()
	case "late", "later":
		p.limiter.timeout = after(5 * time.Millisecond)
	}
	p.trouble.next(what)
	defer p.trouble.next("")
	action := rapid.SampledFrom([]string{"take", "take", "take", "again", "renew", "renew", "release", "die"}).Draw(rt, "action")
	lease, held := r.draw(rt, action)
	if action == "renew" && held && r.limit.Fail == FailLocal {
		i = r.held[lease].process // which is the one that knows of it
		p.trouble.next("")
		p = r.processes[i]
		p.limiter.timeout = after(time.Minute)
		if strings.HasPrefix(what, "late") {
			p.limiter.timeout = after(5 * time.Millisecond)
		}
		p.trouble.next(what)
		defer p.trouble.next("")
	}
	take := placeOf(r.limit, "alice", lease)
	said := ""
	defer func() {
		r.story = append(r.story, fmt.Sprintf("at %d s process %d (Redis %+d s) %s %s %s: %s", (now-worldStart)/1000, i, -r.behind/1000, action, lease, what, said))
	}()
	switch action {
	case "take", "again":
		if action == "again" {
			r.seen.Again++
		}
		fits := held || r.holders(-1) < r.limit.Max
		a, err := p.limiter.Take(r.t.Context(), []Take{take})
		var unavailable *UnavailableError
		switch {
		case errors.As(err, &unavailable):
			said, r.tried = "undecided", append(r.tried, lease)
			r.seen.Undecided++
			return ""
		case err != nil:
			return err.Error()
		}
		said = fmt.Sprintf("%+v", a.Decisions[0])
		if r.healthy && a.Allowed != fits {
			return "without trouble Redis has decided wrongly: " + said
		}
		if !a.Allowed {
			r.seen.Refused++
			return ""
		}
		r.seen.Allowed++
		if a.Decisions[0].Source == FromLocal {
			r.seen.Local++
		}
		r.held[lease] = holder{now + r.limit.Window.Milliseconds(), i}
	case "renew":
		kept, err := p.limiter.Renew(r.t.Context(), take)
		said = fmt.Sprintf("%+v %v", kept, err)
		h := r.held[lease]
		switch {
		case err != nil:
			return ""
		case kept.Held && (held || r.limit.Fail == FailClosed):
			r.seen.Renewed++
			r.held[lease] = holder{now + r.limit.Window.Milliseconds(), h.process}
		case kept.Held:
			delete(r.held, lease)
		default:
			r.seen.Lost++
			if r.healthy && held {
				return "without trouble a place is lost: " + said
			}
			delete(r.held, lease)
		}
	case "release":
		delete(r.held, lease) // before it asks
		kept, err := p.limiter.Release(r.t.Context(), take)
		said = fmt.Sprintf("%v %v", kept, err)
		r.seen.Released++
		if r.healthy && (err != nil || kept != held) {
			return "without trouble a place is released wrongly: " + said
		}
	case "die": // it says nothing, and its lease ends
	}
	return r.tooMany(now)
}

// draw chooses a lease, and reports whether somebody believes in it.
func (r *placesRun) draw(rt *rapid.T, action string) (lease string, held bool) {
	from := r.tried
	if action != "again" {
		from = nil
		for lease := range r.held {
			from = append(from, lease)
		}
		slices.Sort(from)
	}
	if action == "take" || len(from) == 0 {
		r.leases++
		return fmt.Sprint("lease-", r.leases), false
	}
	lease = rapid.SampledFrom(from).Draw(rt, "lease")
	return lease, r.held[lease].until > r.now.Load()
}

// tooMany says if more hold a place than may.
func (r *placesRun) tooMany(now int64) string {
	if n := r.holders(-1); r.limit.Fail == FailClosed && n > r.limit.Max {
		return fmt.Sprintf("%d hold a place of %d", n, r.limit.Max)
	}
	for i := range r.processes {
		if n := r.holders(i); n > r.limit.Max {
			return fmt.Sprintf("%d hold a place of %d that process %d has given out", n, r.limit.Max, i)
		}
	}
	take := placeOf(r.limit, "alice", "")
	if n := r.client.ZCard(r.t.Context(), r.processes[0].limiter.store.key(&take)).Val(); r.limit.Fail == FailClosed && n > r.limit.Max {
		return fmt.Sprintf("%d members are kept", n)
	}
	return ""
}
