package watch

import (
	"cmp"
	"context"
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/internal/limit"
	"tallyroll/internal/limit/limitfile"
	"tallyroll/internal/watch/form"
	"tallyroll/internal/watch/history"
	"tallyroll/internal/window"
	"tallyroll/internal/window/calendar"
	"tallyroll/internal/window/commit"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/cases"
	"tallyroll/tests/stack"
)

var figuresLine = regexp.MustCompile(`^(\d+)(?: \((\d+) to (\d+)\))?((?: stale| lost| young)*)$`)

func parseFigures(t *testing.T, text string) (f Figures) {
	t.Helper()
	m := figuresLine.FindStringSubmatch(text)
	require.NotNil(t, m, text)
	numbers := []string{m[1], cmp.Or(m[2], m[1]), cmp.Or(m[3], m[1])}
	for i, n := range []*int64{&f.Total, &f.Lower, &f.Upper} {
		var err error
		*n, err = strconv.ParseInt(numbers[i], 10, 64)
		require.NoError(t, err)
	}
	f.Fresh, f.Young = !strings.Contains(m[4], "stale"), strings.Contains(m[4], "young")
	f.Complete = !f.Young && !strings.Contains(m[4], "lost")
	return f
}

func TestConditionHoldsByTotalsUnlessHitsAreUnknown(t *testing.T) {
	t.Parallel()
	cases.Check(t, "verdicts", func(t *testing.T, section, given string) string {
		rule := mustParse(t, "targets: {a: {nats: alerts}}\nrules:\n- {name: r, key: k, window: 1m, "+section+", to: [a]}\n").Rules[0]
		if !strings.Contains(section, "least") {
			rule.Condition.Least = 0
		}
		text, earlier, change := strings.Cut(given, "; before: ")
		current, previous := parseFigures(t, text), Figures{}
		if change {
			previous = parseFigures(t, earlier)
		}
		verdict, why := rule.Condition.evaluate(current, previous)
		out := map[Verdict]string{Holds: "holds", DoesNotHold: "does not hold", Undecided: "unknown"}[verdict]
		if why != "" {
			out += ": " + why
		}
		return out
	})
}

// holds reports whether a condition holds for exact numbers, in arithmetic without overflow.
func (c Condition) holds(current, previous int64) bool {
	switch c.Kind {
	case Above:
		return current > c.Threshold
	case Below:
		return current < c.Threshold
	}
	left := new(big.Int).Mul(big.NewInt(current), big.NewInt(limit.Whole))
	right := new(big.Int).Mul(big.NewInt(previous), big.NewInt(limit.Whole+c.Threshold))
	if c.Threshold > 0 {
		return current > previous && left.Cmp(right) >= 0
	}
	return current < previous && left.Cmp(right) <= 0
}

// For any truth within the bounds, a condition that surely holds does hold. Without surely, totals decide,
// and a lower bound that reaches least. If hits are uncounted, only the lower bound is known: then a verdict
// is true for any number of further hits.
func TestVerdictIsTrueForAnyTruthWithinTheBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		scale := rapid.SampledFrom([]int64{3, 30, 1 << 40, 1 << 60}).Draw(t, "scale")
		figures := func(name string) (f Figures, truth int64) {
			f.Lower = rapid.Int64Range(0, scale).Draw(t, name+" lower")
			f.Upper = f.Lower + rapid.SampledFrom([]int64{0, 0, 1, scale}).Draw(t, name+" range")
			f.Total = rapid.Int64Range(f.Lower, f.Upper).Draw(t, name+" total")
			f.Fresh, f.Complete = rapid.Bool().Draw(t, name+" fresh"), rapid.Bool().Draw(t, name+" complete")
			truth = rapid.Int64Range(f.Lower, f.Upper).Draw(t, name+" truth")
			if !f.isKnown() { // any number of hits may be missing or not counted yet
				truth += rapid.Int64Range(0, scale).Draw(t, name+" missing")
			}
			return f, truth
		}
		now, nowTruth := figures("now")
		before, beforeTruth := figures("before")
		c := Condition{Kind: rapid.SampledFrom([]Kind{Above, Below, ByPercent}).Draw(t, "kind"), Surely: rapid.Bool().Draw(t, "surely")}
		c.Threshold = rapid.Int64Range(0, scale).Draw(t, "threshold")
		if c.Kind == ByPercent {
			c.Threshold = rapid.OneOf(rapid.Int64Range(1, 50_000), rapid.Int64Range(-limit.Whole, -1)).Draw(t, "percent")
			c.Least = rapid.Int64Range(0, scale).Draw(t, "least")
		}
		verdict, why := c.evaluate(now, before)
		decided := now.isKnown() && (c.Kind != ByPercent || before.isKnown())
		truth := c.holds(nowTruth, beforeTruth) && max(nowTruth, beforeTruth) >= c.Least
		switch {
		case (verdict == Undecided) != (why != ""):
			t.Errorf("%v %q", verdict, why)
		case decided && verdict == Undecided:
			t.Error("undecided with complete figures")
		case decided && !c.Surely && (verdict == Holds) != (c.holds(now.Total, before.Total) && max(now.Lower, before.Lower) >= c.Least):
			t.Errorf("%v, want the verdict of the totals", verdict)
		case verdict == Holds && (c.Surely || !decided) && !truth:
			t.Errorf("it holds, but not for %d and %d", nowTruth, beforeTruth)
		case verdict == DoesNotHold && !decided && truth:
			t.Errorf("it holds not, but for %d and %d it does", nowTruth, beforeTruth)
		}
	})
}

// Any sequence of verdicts obeys the rules for states in docs/watch.md.
func TestAnyRunOfVerdictsObeysTheRulesOfStates(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rule := &Rule{Name: "r", Window: window.Last(time.Minute), To: []string{"a"}, For: time.Duration(rapid.SampledFrom([]int{0, 0, 1000, 5000}).Draw(t, "for")) * time.Millisecond}
		many := rapid.Bool().Draw(t, "many")
		if many {
			rule.Top = 1
		}
		at := int64(1_700_000_000_000)
		var now Record
		heldSince, notified := int64(-1), history.State("") // by a model: since when it has held, and the last state that the target received
		open := false
		for range rapid.IntRange(1, 60).Draw(t, "sightings") {
			at += rapid.Int64Range(1, 3000).Draw(t, "pause")
			s := Result{Rule: rule, Key: "k", At: at, AsOf: at, Verdict: rapid.SampledFrom([]Verdict{Undecided, Holds, Holds, DoesNotHold}).Draw(t, "verdict")}
			if s.Verdict == Undecided {
				s.Reason = rapid.SampledFrom([]string{reasonStale, reasonYoung}).Draw(t, "reason")
			}
			before := now
			after, changed := now.advance(s)
			if changed != (after.State != before.State) {
				t.Fatalf("%s to %s, changed %v", before.State, after.State, changed)
			}
			now = after
			if s.Verdict != Holds {
				heldSince = -1
			} else if heldSince < 0 {
				heldSince = at
			}
			if now.State == "" {
				if !many || s.Verdict == Holds {
					t.Fatal("no state")
				}
				continue
			}
			switch s.Verdict {
			case Undecided:
				if now.State != history.Unknown && !(many && before.State == "") {
					t.Fatalf("it is undecided, and the state is %s", now.State)
				}
			case DoesNotHold:
				if now.State != history.OK && now.State != history.Resolved {
					t.Fatalf("it does not hold, and the state is %s", now.State)
				}
			case Holds:
				over := at-heldSince >= rule.For.Milliseconds()
				if want := map[bool]history.State{true: history.Firing, false: history.Pending}[over || open]; now.State != want {
					t.Fatalf("it holds for %d of %v, and the state is %s", at-heldSince, rule.For, now.State)
				}
			}
			// It is resolved if it had fired, and only then.
			if changed && now.State == history.Resolved != open && (now.State == history.Resolved || now.State == history.OK) {
				t.Fatalf("%s after it fired: %v", now.State, open)
			}
			open = now.State == history.Firing || open && now.State == history.Unknown
			if now.Open != open {
				t.Fatalf("open %v, want %v", now.Open, open)
			}
			if !changed {
				continue
			}
			if now.Previous != before.State || !now.Since.Equal(toTime(at)) {
				t.Fatalf("%+v", now)
			}
			// A target receives no state twice in a row, and an idle state only after another one.
			if !now.Quiet {
				if notified == now.State || notified.IsIdle() && now.State.IsIdle() {
					t.Fatalf("notified of %s after %s", now.State, notified)
				}
				notified = now.State
			} else if now.State == history.Firing || now.State == history.Pending || now.State == history.Resolved && !notified.IsIdle() {
				t.Fatalf("no target is notified of %s after %s", now.State, notified)
			}
			if isNotified := len(now.Notified) > 0; isNotified == notified.IsIdle() {
				t.Fatalf("last notified of %s, and Notified is %v", notified, now.Notified)
			}
		}
	})
}

// A rule that comes back after it was removed has no previous state: no process has evaluated it meanwhile.
func TestRuleThatComesBackHasNoStateBefore(t *testing.T) {
	t.Parallel()
	rule := &Rule{Name: "r", Window: window.Last(time.Minute), To: []string{"a"}}
	for _, was := range []Verdict{Undecided, DoesNotHold, Holds} {
		for _, is := range []Verdict{Undecided, DoesNotHold, Holds} {
			r, _ := Record{}.advance(Result{Rule: rule, Key: "k", At: 1000, Verdict: was})
			next, changed := r.finish(2000, "removed").advance(Result{Rule: rule, Key: "k", At: 3000, Verdict: is})
			require.True(t, changed, "%v, %v", was, is)
			require.Empty(t, next.Previous, "%v, %v", was, is)
		}
	}
}

// The targets that received the beginning receive the end, whatever the file lists then.
func TestTargetsThatReceivedTheBeginningReceiveTheEnd(t *testing.T) {
	t.Parallel()
	rule := &Rule{Name: "r", Window: window.Last(time.Minute), To: []string{"a", "b"}}
	firing, _ := Record{}.advance(Result{Rule: rule, Key: "k", At: 1000, Verdict: Holds})
	edited := &Rule{Name: "r", Window: window.Last(time.Minute), To: []string{"b", "c"}}
	resolved, changed := firing.advance(Result{Rule: edited, Key: "k", At: 2000, Verdict: DoesNotHold})
	if !changed || resolved.State != history.Resolved || resolved.Quiet || !slices.Equal(resolved.To, []string{"a", "b"}) {
		t.Errorf("%+v", resolved)
	}
	slowRule := &Rule{Name: "r", Window: window.Last(time.Minute), For: time.Hour, To: []string{"a"}}
	pending, _ := Record{}.advance(Result{Rule: slowRule, Key: "k", At: 1000, Verdict: Holds})
	ok, changed := pending.advance(Result{Rule: edited, Key: "k", At: 2000, Verdict: DoesNotHold})
	if !changed || ok.State != history.OK || ok.Quiet || !slices.Equal(ok.To, []string{"a"}) {
		t.Errorf("ok after pending: %+v", ok)
	}
	removed := firing.finish(3000, "gone")
	if removed.State != history.Resolved || removed.Quiet || !removed.Gone || removed.isLive() || removed.Open || removed.Reason != "gone" {
		t.Errorf("%+v", removed)
	}
	again, changed := removed.advance(Result{Rule: rule, Key: "k", At: 4000, Verdict: Holds})
	if !changed || again.State != history.Firing || again.Quiet || again.Gone || !again.Open {
		t.Errorf("%+v", again)
	}
}

func TestClockThatIsSetBackDelaysNoRule(t *testing.T) {
	t.Parallel()
	rule := &Rule{Name: "r", Window: window.Last(time.Minute), For: 10 * time.Second}
	hour := time.Hour.Milliseconds()
	now, _ := Record{}.advance(Result{Rule: rule, Key: "k", At: 2 * hour, Verdict: Holds})
	now, changed := now.advance(Result{Rule: rule, Key: "k", At: hour, Verdict: Holds})
	if !changed || now.State != history.Pending || !now.Quiet || !now.Began.Equal(toTime(hour)) {
		t.Fatalf("%+v", now)
	}
	now, changed = now.advance(Result{Rule: rule, Key: "k", At: hour + 10_000, Verdict: Holds})
	if !changed || now.State != history.Firing || now.Quiet {
		t.Errorf("%+v", now)
	}
}

func TestFileIsReadIntoRulesAndTargets(t *testing.T) {
	t.Parallel()
	set, err := Parse([]byte(`
targets:
  ops: {webhook: "https://example.org/hook", secret_file: /run/secrets/hook}
  chat: {webhook_file: /run/secrets/url}
  am: {alertmanager: "http://127.0.0.1:9093"}
  bus: {nats: tallyroll.alert, states: [firing, resolved]}
rules:
  - {name: errors, key: http.5xx, window: 5m, above: 100, for: 1m, surely: true, to: [ops, bus]}
  - {name: shops, prefix: shop., group: 2, window: 1h, below: 1, to: [chat]}
  - {name: busiest, top: 20, window: 1d, change: "-12.5%", least: 3, to: [am]}
  - {name: rise, key: a, window: 1m, change: +50%, to: [am]}
  - {name: silence, all: true, window: 5m, below: 1, to: [am]}
  - {name: shop, prefix: shop., each: true, window: today, above: 5, to: [am]}
  - {name: month, key: a, window: month, tz: America/New_York, above: 7, to: [am]}
`), nil)
	require.NoError(t, err)
	prefix := "shop."
	newYork, err := time.LoadLocation("America/New_York")
	require.NoError(t, err)
	for i, want := range []Rule{
		{Name: "errors", Key: "http.5xx", Window: window.Last(5 * time.Minute), Condition: Condition{Kind: Above, Threshold: 100, Surely: true}, For: time.Minute, To: []string{"ops", "bus"}},
		{Name: "shops", Prefix: &prefix, Group: 2, Window: window.Last(time.Hour), Condition: Condition{Kind: Below, Threshold: 1}, To: []string{"chat"}},
		{Name: "busiest", Top: 20, Window: window.Last(24 * time.Hour), Condition: Condition{Kind: ByPercent, Threshold: -1250, Least: 3}, To: []string{"am"}},
		{Name: "rise", Key: "a", Window: window.Last(time.Minute), Condition: Condition{Kind: ByPercent, Threshold: 5000, Least: defaultLeast}, To: []string{"am"}},
		{Name: "silence", All: true, Window: window.Last(5 * time.Minute), Condition: Condition{Kind: Below, Threshold: 1}, To: []string{"am"}},
		{Name: "shop", Prefix: &prefix, Each: true, Window: window.Span{To: window.Now, Calendar: calendar.Window{Name: "today", Zone: time.UTC}}, Condition: Condition{Kind: Above, Threshold: 5}, To: []string{"am"}},
		{Name: "month", Key: "a", Window: window.Span{To: window.Now, Calendar: calendar.Window{Name: "month", Zone: newYork}}, Condition: Condition{Kind: Above, Threshold: 7}, To: []string{"am"}},
	} {
		want.line = 8 + i
		require.Equal(t, want, *set.Rules[i])
	}
	for i, want := range []Target{
		{Name: "ops", kind: targetKinds[0], Address: "https://example.org/hook", SecretFile: "/run/secrets/hook"},
		{Name: "chat", kind: targetKinds[1], Address: "/run/secrets/url"},
		{Name: "am", kind: targetKinds[2], Address: "http://127.0.0.1:9093"},
		{Name: "bus", kind: targetKinds[3], Address: "tallyroll.alert", States: []history.State{history.Firing, history.Resolved}},
	} {
		want.line = 3 + i
		require.Equal(t, want, *set.Targets[i])
	}
}

// Each target that the form allows has a kind.
func TestKindsOfTargetsAreThoseOfTheForm(t *testing.T) {
	t.Parallel()
	var fields []string
	for _, field := range form.Target {
		if field.Choice == "target" {
			fields = append(fields, field.Name)
		}
	}
	require.Equal(t, strings.Join(fields, ", "), targetFields())
}

// Each error names the line and what is allowed, and quotes no secret.
func TestMistakesInTheFileAreNamedWithTheirLine(t *testing.T) {
	t.Parallel()
	limits, err := limitfile.Parse([]byte(`
limits:
- {name: pro, window: 30d, max: 1000, count: {nearly: "nearly.{limit}.{key}", refused: "refused.{limit}.{key}"}}
- {name: free, window: 1d, max: 10, count: {refused: "refused.{limit}.{key}"}}
- {name: all, window: 1d, unlimited: true, count: {allowed: "usage.{limit}.{key}"}}
- {name: plans, window: month, max: 10, at_most: 100, count: {nearly: "near.{limit}.{key}"}}
- {name: sums, window: 1d, max: 10, count: {nearly: "near.{limit}"}}
`))
	require.NoError(t, err)
	cases.Check(t, "mistakes", func(t *testing.T, section, given string) string {
		switch section {
		case "target a":
			given = "targets:\n  a: {" + given + "}\nrules:\n- {name: r, key: k, window: 1m, above: 1, to: [a]}"
		case "a rule without a file of limits":
			given = "targets:\n  a: {nats: alerts}\nrules:\n- {" + given + "}"
			_, err := Parse([]byte(given), nil)
			return fmt.Sprint(err)
		case "a rule of a file whose only target is a":
			given = "targets:\n  a: {nats: alerts}\nrules:\n- {" + given + "}"
		}
		_, err := Parse([]byte(strings.TrimPrefix(given+"\n", "\n")), limits)
		require.Error(t, err, given)
		require.NotContains(t, err.Error(), "hunter2")
		return err.Error()
	})
	targets, rules := "targets:\n", "targets: {a: {nats: alerts}}\nrules:\n"
	for i := range 33 {
		targets += fmt.Sprintf("  a%d: {nats: alerts}\n", i)
	}
	_, err = Parse([]byte(targets), nil)
	require.EqualError(t, err, "line 34: a32: the file has more than 32 targets")
	_, err = Parse([]byte(rules+strings.Repeat("- {name: r, key: k, window: 1m, above: 1, to: [a]}\n", 10_001)), nil)
	require.EqualError(t, err, "line 10003: the file has 10001 rules: at most 10000 are allowed")
}

// newStore returns a namespace in Redis that a worker has created with the default tiers.
func newStore(t *testing.T) *schema.Store {
	t.Helper()
	tiers, err := window.ParseTiers(window.DefaultTiers)
	require.NoError(t, err)
	store := schema.NewStore(stack.ProgramClient(t, stack.SharedRedis(t).URL()), "tallyroll")
	require.NoError(t, store.EnsureLayout(t.Context(), window.Layout{Tiers: tiers, Shards: 1}))
	return store
}

// newCommits returns a function that counts n hits of each counter at a moment.
func newCommits(t *testing.T, store *schema.Store) func(at time.Time, n int64, names ...string) {
	t.Helper()
	ctx, created := t.Context(), time.Now().Add(-time.Hour)
	require.NoError(t, store.AddStream(ctx, "HITS"))
	layout, err := store.Layout(ctx)
	require.NoError(t, err)
	w, err := commit.OpenWriter(ctx, store, layout, "HITS", 0)
	require.NoError(t, err)
	seq := uint64(0)
	return func(at time.Time, n int64, names ...string) {
		t.Helper()
		batch := window.NewBatch(layout)
		for _, name := range names {
			batch.Add([]byte(name), window.HashCounter([]byte(name)), at.UnixMilli(), at.UnixMilli(), n)
		}
		seq++
		_, err := w.Commit(ctx, batch.Shard(0), window.Cursor{Created: created.UnixNano(), Seq: seq, Stored: time.Now().UnixNano(), AsOf: time.Now().UnixMilli()})
		require.NoError(t, err)
	}
}

// A calendar's window begins at midnight of its zone. A rule of each counter reads those that are above, of
// its prefix alone, and those that were.
func TestRulesReadCalendarsAndEachCounterOfAPrefix(t *testing.T) {
	t.Parallel()
	store, now := newStore(t), time.Now()
	count := newCommits(t, store)
	count(now.Add(-13*time.Hour), 5, "shop.a", "shop.b")
	count(now, 2, "shop.a", "shop.c", "blog.a")
	set := mustParse(t, fmt.Sprintf(`targets: {a: {nats: alerts}}
rules:
- {name: today, key: shop.a, window: today, tz: Etc/GMT%+d, above: 1, to: [a]}
- {name: utc, key: shop.a, window: 1d, above: 1, to: [a]}
- {name: each, prefix: shop., each: true, window: today, tz: Etc/GMT%+[1]d, above: 1, to: [a]}
- {name: year, key: shop.a, window: year, above: 1, to: [a]}
`, now.UTC().Hour()-12)) // it is noon there
	q := querier{read.NewReader(store), nil, 10}
	current, err := q.query(t.Context(), set.Rules, func(r *Rule) []string {
		return map[string][]string{"each": {"shop.b", "blog.a"}}[r.Name] // before the file changed, blog. was its prefix
	})
	require.NoError(t, err)
	var got []string
	for _, s := range current.results {
		total, lower, upper := s.bounds()
		got = append(got, fmt.Sprintf("%s %s %d: %v %v %v", s.Rule.Name, s.Key, s.Verdict, total, lower, upper))
	}
	require.Equal(t, []string{
		"today shop.a 1: 2 2 2", "utc shop.a 1: 7 7 7", "each  0: null null null", "each shop.a 1: 2 2 2", "each shop.c 1: 2 2 2", "each shop.b 0: 0 0 0",
		"year shop.a 0: null null null",
	}, got)
	firing, _ := Record{}.advance(current.results[0])
	require.Equal(t, "today", firing.Window)
	require.Equal(t, set.Rules[0].Window.Calendar.(calendar.Window).Zone.String(), firing.TZ)
}

// Sums that include the overflow counters are exact. Others, and counters, may have as many hits more.
func TestRulesAboutNamesWithoutRoom(t *testing.T) {
	t.Parallel()
	store, now := newStore(t), time.Now()
	store.Bounds = window.NameBounds{{Prefix: "web.", Max: 2}}
	newCommits(t, store)(now, 3, "web.a.1", "web.a.2", "web.b.3", "web.b.4")
	set := mustParse(t, `targets: {a: {nats: alerts}}
rules:
- {name: whole, prefix: web., window: 1d, above: 1, to: [a]}
- {name: part, prefix: web.b., window: 1d, above: 1, to: [a]}
- {name: groups, prefix: web., group: 2, window: 1d, above: 1, to: [a]}
- {name: one, key: web.b.3, window: 1d, above: 1, to: [a]}
`)
	q := querier{read.NewReader(store), nil, 10}
	current, err := q.query(t.Context(), set.Rules, func(*Rule) []string { return nil })
	require.NoError(t, err)
	var got []string
	for _, s := range current.results {
		total, lower, upper := s.bounds()
		got = append(got, fmt.Sprintf("%s %s: %v %v %v", s.Rule.Name, s.Key, total, lower, upper))
	}
	require.Equal(t, []string{
		"whole web.: 12 12 12", "part web.b.: 0 0 6", "groups : null null null", "groups web.a: 6 6 12", "groups web.~other: 6 6 6", "one web.b.3: 0 0 6",
	}, got)
}

// A rule about all hits is one question. A namespace without their sum makes it unknown, and says what to do.
func TestRuleAboutAllHits(t *testing.T) {
	t.Parallel()
	set := mustParse(t, "targets: {a: {nats: alerts}}\nrules:\n- {name: silence, all: true, window: 5m, below: 1, to: [a]}\n")
	ask := func(store *schema.Store) Result {
		q := querier{read.NewReader(store), nil, 1}
		current, err := q.query(t.Context(), set.Rules, func(*Rule) []string { return nil })
		require.NoError(t, err)
		require.Len(t, current.results, 1)
		return current.results[0]
	}
	store := newStore(t)
	add := newCommits(t, store)
	count := func(names ...string) { add(time.Now(), 2, names...) }
	count()
	require.Equal(t, Holds, ask(store).Verdict)
	count("a", "b", "c")
	got := ask(store)
	require.Equal(t, DoesNotHold, got.Verdict)
	require.EqualValues(t, 6, got.Figures.Total)
	require.Equal(t, "all", got.Rule.kindOfKey())
}

// The reason names the tiers.
func TestWindowThatNoTierHoldsMakesOnlyItsOwnRuleUnknown(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	text.WriteString("targets: {a: {nats: alerts}}\nrules:\n- {name: good, key: k, window: 1m, above: 1, to: [a]}\n")
	for i := range 100 {
		fmt.Fprintf(&text, "- {name: bad%d, %s, window: %dd, above: 1, to: [a]}\n", i, []string{"key: k", "prefix: k", "prefix: k, group: 1", "top: 3", "prefix: k, each: true"}[i%5], 100+i)
	}
	text.WriteString("- {name: before, key: k, window: 20d, change: +50%, to: [a]}\n")
	set := mustParse(t, text.String())
	store := newStore(t)
	newCommits(t, store)(time.Now(), 1, "k")
	real := read.NewReader(store)
	for _, reader := range []Reader{real, otherLayout{real}} {
		q := querier{reader, nil, 10}
		current, err := q.query(t.Context(), set.Rules, func(*Rule) []string { return nil })
		require.NoError(t, err)
		for _, s := range current.results {
			if s.Rule.Group > 0 && s.Key == "" && reader != Reader(real) {
				continue // the list of its counters is answered
			}
			bad := s.Rule.Name != "good"
			if refused := strings.HasPrefix(s.Reason, "it cannot be asked: ") && strings.Contains(s.Reason, "1h cells reach back 32d"); refused != bad {
				t.Errorf("%s: %q", s.Rule.Name, s.Reason)
			}
		}
	}
}

// otherLayout answers with tiers that hold less than it shows, as when a calendar's window outgrows them.
type otherLayout struct{ *read.Reader }

func (otherLayout) Look(context.Context) (window.Layout, error) {
	return window.Layout{Tiers: window.Tiers{{Cell: time.Hour, Window: 400 * 24 * time.Hour}}, Shards: 1}, nil
}
