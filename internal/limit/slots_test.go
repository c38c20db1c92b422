package limit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/tests/cases"
	"tallyroll/tests/stack"
)

// slotOf is a take of a slot.
func slotOf(l *Limit, key, lease string) Take {
	return Take{Limit: l, Caller: key, Key: key, N: 1, Lease: lease}
}

func concurrentLimit(most int64, fail Fail) *Limit {
	return &Limit{Name: "exports", Window: time.Minute, Max: most, Policy: Concurrent, Fail: fail, Mode: Enforce}
}

// checkSlots plays a file about the slots of alice. The section has max and the fail mode, and broken keeps
// commands from Redis while it is away.
func checkSlots(t *testing.T, file string, broken *cut, fresh func(*testing.T) *world) {
	cases.Check(t, file, func(t *testing.T, section, given string) string {
		var most int64
		var fail Fail
		require.NoError(t, errOf(fmt.Sscanf(section, "max %d, %s", &most, &fail)))
		w, l := fresh(t), concurrentLimit(most, fail)
		other := newWorld(t, w.client, w.limiter.namespace)
		lines := strings.Split(given, "\n")
		for i, line := range lines {
			words := strings.Fields(line)
			if words[0] == "at" {
				w.at(mustInt(t, words[1]))
				words = words[2:]
			}
			switch words[0] {
			case "Redis":
				broken.on = words[2] == "away"
			case "elsewhere":
				lines[i] += ": " + other.askSlot(words[1], slotOf(l, "alice", words[2]))
			default:
				lines[i] += ": " + w.askSlot(words[0], slotOf(l, "alice", words[1]))
			}
		}
		return strings.Join(lines, "\n")
	})
}

// askSlot is what comes of a question, in words. Moments are milliseconds from the beginning.
func (w *world) askSlot(verb string, take Take) string {
	w.t.Helper()
	ctx, words := w.t.Context(), []string{}
	say := func(format string, args ...any) { words = append(words, fmt.Sprintf(format, args...)) }
	lasts := func(ends time.Time, in time.Duration, source Source) {
		if !ends.IsZero() {
			say("until %d", ends.UnixMilli()-worldStart)
			require.InDelta(w.t, ends.UnixMilli()-w.clock, in.Milliseconds(), 1) // if the clock went back
		}
		if source != SourceRedis {
			say("by %s", source)
		}
	}
	var err error
	switch verb {
	case "take", "look":
		ask := map[string]func(context.Context, []Take) (Answer, error){"take": w.limiter.Take,
			"look": w.limiter.Look}[verb]
		w.limiter.refusals.all = nil
		var a Answer
		if a, err = ask(ctx, []Take{take}); err == nil {
			d := a.Decisions[0]
			say("%s, %d left", map[bool]string{true: "allowed", false: "refused"}[a.Allowed], d.Remaining)
			require.Equal(w.t, d.Source == SourceRedis, d.Certain)
			require.Equal(w.t, a.Allowed, d.RetryAfter == 0)
			if !a.Allowed {
				say("free after %d ms", d.RetryAfter.Milliseconds())
			}
			lasts(d.Ends, d.EndsIn, d.Source)
		}
	case "renew":
		var lease Lease
		if lease, err = w.limiter.Renew(ctx, take); err == nil {
			say("%s", map[bool]string{true: "held", false: "not held"}[lease.Held])
			lasts(lease.Ends, lease.EndsIn, lease.Source)
		}
	case "release":
		var held bool
		if held, err = w.limiter.Release(ctx, take); err == nil {
			say("%s", map[bool]string{true: "released", false: "not held"}[held])
		}
	default:
		w.t.Fatalf("there is no question %s", verb)
	}
	if err != nil {
		var unavailable *UnavailableError
		require.ErrorAs(w.t, err, &unavailable)
		return "unavailable"
	}
	return strings.Join(words, ", ")
}

// A slot and hits of other limits are taken together or not at all.
func testSlotsTogether(t *testing.T, fresh func(*testing.T) *world) {
	for _, other := range []string{"alice", "bob"} {
		t.Run(other, func(t *testing.T) {
			w, l, hits := fresh(t), concurrentLimit(1, FailClosed), adhoc(t, time.Hour, 2, Log)
			first, second := slotOf(l, "alice", "a"), slotOf(l, "alice", "b")
			if a := w.take(first, takeOf(hits, other, 1)); !a.Allowed || a.Decisions[0].Ends.IsZero() {
				t.Fatalf("%+v", a)
			}
			if a := w.take(second, takeOf(hits, other, 1)); a.Allowed || a.Decisions[0].Allowed || !a.Decisions[0].Ends.IsZero() {
				t.Fatalf("%+v", a)
			}
			w.wantRemaining(hits, other, 1)
			require.Equal(t, "released", w.askSlot("release", first))
			if a := w.take(second, takeOf(hits, other, 2)); a.Allowed || !a.Decisions[0].Ends.IsZero() {
				t.Fatalf("%+v", a)
			}
			require.Equal(t, "not held", w.askSlot("renew", second), "though the take beside was refused")
			require.True(t, w.take(second, takeOf(hits, other, 1)).Allowed)
			// What was held before stays held, whatever becomes of the others.
			require.False(t, w.take(second, takeOf(hits, other, 1)).Allowed)
			require.Contains(t, w.askSlot("renew", second), "held, until", "a slot is lost that was asked for again")
		})
	}
}

func TestBadSlotsAreRefused(t *testing.T) {
	t.Parallel()
	w, l, hits := newWorld(t, backends[2].start(t), "bad"), concurrentLimit(2, FailLocal), adhoc(t, time.Minute, 5, Log)
	requireField := func(field string, err error) {
		t.Helper()
		var bad *TakeError
		require.ErrorAs(t, err, &bad)
		require.Equal(t, field, bad.Field)
	}
	for _, c := range []struct {
		limit *Limit
		n     int64
		lease string
		field string
	}{
		{l, 1, "", "lease"}, {l, 1, "a b", "lease"}, {l, 1, strings.Repeat("a", 65), "lease"},
		{hits, 1, "a", "lease"}, {l, 2, "a", "n"}, {l, -1, "a", "n"},
	} {
		take := slotOf(c.limit, "a", c.lease)
		take.N = c.n
		requireField(c.field, errOf(w.limiter.Take(t.Context(), []Take{take})))
	}
	requireField("limit", errOf(w.limiter.Renew(t.Context(), takeOf(hits, "a", 1))))
	requireField("lease", errOf(w.limiter.Release(t.Context(), takeOf(l, "a", 1))))
	require.Error(t, errOf(Adhoc(time.Minute, 5, Concurrent)), "a limit without a name has slots")
}

func TestSlotsAreGivenOutWithoutRedis(t *testing.T) {
	t.Parallel()
	client, broken, worlds := backends[2].start(t), new(cut), 0
	client.AddHook(hook(broken.process))
	checkSlots(t, "slots-away", broken, func(t *testing.T) *world {
		broken.on = false
		worlds++
		return newWorld(t, client, fmt.Sprint("away-", worlds))
	})
}

// TestPlacesBound draws holders that work, die, ask again and give back, at processes that share a Redis
// whose clock goes back, and trouble on the way, as TestBound does. Whatever happens, no more than max hold a
// slot at once if the limit is closed without Redis, and no more than max by one process if it is local.
// Without trouble, Redis decides exactly.
func TestPlacesBound(t *testing.T) {
	t.Parallel()
	client := stack.Redis(t, stack.RedisArgs("--appendonly", "no")).Client()
	for _, script := range heldScripts.decide {
		require.NoError(t, script.Load(t.Context(), client).Err())
	}
	var seen slotsSeen
	round := 0
	playSchedules(t, 30, seen.all, func(rt *rapid.T) {
		round++
		s := newBoundRun(t, rt, client, fmt.Sprint("slots-", round))
		defer s.end()
		s.limit = concurrentLimit(rapid.Int64Range(1, 4).Draw(rt, "max"), s.limit.Fail)
		for _, p := range s.processes {
			p.ahead.Store(max(0, p.ahead.Load()))
		}
		r := &slotsRun{boundRun: s, seen: &seen, held: make(map[string]holder)}
		for range rapid.IntRange(10, 60).Draw(rt, "steps") {
			if problem := r.step(rt); problem != "" {
				rt.Fatal(problem + "\n" + strings.Join(s.story, "\n"))
			}
		}
		seen.Schedules++
	})
	t.Logf("%+v", seen)
}

type slotsSeen struct{ Schedules, Allowed, Refused, Renewed, Lost, Released, Undecided, Local, Again int }

func (s *slotsSeen) all() bool {
	return s.Allowed > 0 && s.Refused > 0 && s.Renewed > 0 && s.Lost > 0 && s.Released > 0 && s.Undecided > 0 && s.Local > 0 && s.Again > 0
}

type slotsRun struct {
	*boundRun
	seen   *slotsSeen
	leases int
	held   map[string]holder // by lease: the client whose answer was that it has a slot
	tried  []string          // leases of takes that nobody has decided
}

// holder believes in its slot until then.
type holder struct {
	until   int64
	process int
}

// holders are how many believe in their slots, of one process or of all.
func (r *slotsRun) holders(process int) (n int64) {
	for _, h := range r.held {
		if h.until > r.now.Load() && (process < 0 || process == h.process) {
			n++
		}
	}
	return n
}

func (r *slotsRun) step(rt *rapid.T) string {
	now := r.now.Add(boundCell * rapid.SampledFrom([]int64{0, 0, 0, 0, 1, 7, 19, 20, 59, 60, 61}).Draw(rt, "seconds"))
	i := rapid.IntRange(0, len(r.processes)-1).Draw(rt, "process")
	p, what := r.processes[i], ""
	if !r.healthy {
		what = rapid.SampledFrom([]string{"", "", "", "", "", "lost", "unsent", "full", "late", "later", "away", "heal", "Redis back"}).Draw(rt, "trouble")
	}
	if what == "Redis back" {
		r.behind += boundCell * rapid.Int64Range(1, 90).Draw(rt, "by")
	}
	require.NoError(r.t, setClock(r.t.Context(), r.client, hashTag("alice"), now-r.behind).Err())
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
	take := slotOf(r.limit, "alice", lease)
	outcome := ""
	defer func() {
		r.story = append(r.story, fmt.Sprintf("at %d s process %d (Redis %+d s) %s %s %s: %s", (now-worldStart)/1000, i, -r.behind/1000, action, lease, what, outcome))
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
			outcome, r.tried = "undecided", append(r.tried, lease)
			r.seen.Undecided++
			return ""
		case err != nil:
			return err.Error()
		}
		outcome = fmt.Sprintf("%+v", a.Decisions[0])
		if r.healthy && a.Allowed != fits {
			return "without trouble Redis has decided wrongly: " + outcome
		}
		if !a.Allowed {
			r.seen.Refused++
			return ""
		}
		r.seen.Allowed++
		if a.Decisions[0].Source == SourceLocal {
			r.seen.Local++
		}
		r.held[lease] = holder{now + r.limit.Window.Milliseconds(), i}
	case "renew":
		kept, err := p.limiter.Renew(r.t.Context(), take)
		outcome = fmt.Sprintf("%+v %v", kept, err)
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
				return "without trouble a slot is lost: " + outcome
			}
			delete(r.held, lease)
		}
	case "release":
		delete(r.held, lease) // before it asks
		kept, err := p.limiter.Release(r.t.Context(), take)
		outcome = fmt.Sprintf("%v %v", kept, err)
		r.seen.Released++
		if r.healthy && (err != nil || kept != held) {
			return "without trouble a slot is released wrongly: " + outcome
		}
	case "die": // it releases nothing, and its lease ends
	}
	return r.tooMany(now)
}

// draw chooses a lease, and reports whether a client relies on it.
func (r *slotsRun) draw(rt *rapid.T, action string) (lease string, held bool) {
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

// tooMany says if more hold a slot than may.
func (r *slotsRun) tooMany(now int64) string {
	if n := r.holders(-1); r.limit.Fail == FailClosed && n > r.limit.Max {
		return fmt.Sprintf("%d hold a slot of %d", n, r.limit.Max)
	}
	for i := range r.processes {
		if n := r.holders(i); n > r.limit.Max {
			return fmt.Sprintf("%d hold a slot of %d that process %d has given out", n, r.limit.Max, i)
		}
	}
	take := slotOf(r.limit, "alice", "")
	if n := r.client.ZCard(r.t.Context(), r.processes[0].limiter.key(&take)).Val(); r.limit.Fail == FailClosed && n > r.limit.Max {
		return fmt.Sprintf("%d members are kept", n)
	}
	return ""
}
