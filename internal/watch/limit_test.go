package watch

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/limit/limitfile"
	"tallyroll/internal/watch/form"
	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
	"tallyroll/tests/schema"
	"tallyroll/tests/stack"
)

// parseWithLimit reads a file with one target and rules, and one of limits.
func parseWithLimit(t *testing.T, url, rules, limits string) *RuleSet {
	t.Helper()
	known, err := limitfile.Parse([]byte("limits:\n" + limits))
	require.NoError(t, err)
	text := []byte(fmt.Sprintf("targets: {a: {webhook: %s}}\nrules:\n%s", url, rules))
	set, err := Parse(text, known)
	require.NoError(t, err)
	require.NoError(t, schema.Check(form.Schema(), text))
	return set
}

const (
	nearlyUsed = "- {name: r, limit: pro, above: 80%, to: [a]}\n"
	proOf      = "- {name: pro, window: 30m, max: %d, count: {nearly: 'nearly.{limit}.{key}', at: 0.01%%, refused: 'refused.{key}'}}\n"
)

// A limit's rule has its counters, window and max. Only what the rule uses of the limit makes another file.
func TestRuleAboutALimitHasItsNumbers(t *testing.T) {
	t.Parallel()
	fingerprints := make(map[string]bool)
	for _, c := range []struct {
		above  string
		max    int64
		other  string
		want   int64
		prints int
	}{
		{"80%", 100_000, "", 80_000, 1}, {"80%", 100_000, "- {name: x, window: 1m, max: 1}\n", 80_000, 1}, {"80%", 99, "", 79, 2},
		{"99.5%", 1000, "", 995, 3}, {"0.01%", 9999, "", 0, 4}, {"9999.99%", 1_000_000_000, "", 99_999_900_000, 5}, {"80%", 0, "", 0, 6},
	} {
		set := parseWithLimit(t, "http://127.0.0.1:1", strings.Replace(nearlyUsed, "80%", c.above, 1), fmt.Sprintf(proOf, c.max)+c.other)
		prefix := "nearly.pro."
		of := set.Rules[0].Limit
		require.Equal(t, "pro", of.Name)
		require.Equal(t, Rule{Name: "r", Prefix: &prefix, Limit: of, Each: true, Window: window.Last(30 * time.Minute), Condition: Condition{Kind: Above, Threshold: c.want},
			To: []string{"a"}, line: 3}, *set.Rules[0], c)
		fingerprints[set.Fingerprint] = true
		require.Len(t, fingerprints, c.prints, c)
	}
}

// lastStates returns the last state of each key of a rule, with its reason.
func lastStates(t *testing.T, js jetstream.JetStream) string {
	t.Helper()
	last := make(map[string]string)
	for _, e := range readRecords(t, js) {
		last[e.Rule+e.Key] = strings.TrimSpace(fmt.Sprintf("%s %s %s", e.Key, e.State, e.Reason))
	}
	return strings.Join(slices.Sorted(maps.Values(last)), ", ")
}

func awaitStates(t *testing.T, js jetstream.JetStream, want string) {
	t.Helper()
	stack.Eventually(t, want, func() (bool, string) {
		got := lastStates(t, js)
		return got == want, got
	})
}

// Each key that crosses the percentage fires once and resolves once, whatever processes come and go. An edit
// of max moves the threshold, and a restart keeps the states.
func TestKeysOfALimitFireAndResolveOnce(t *testing.T) {
	t.Parallel()
	broker := stack.SharedNATS(t)
	a := newKeyReceiver(t)
	c := newCounters(map[string]int64{"nearly.pro.cold": 80, "refused.hot": 500, "nearly.pro": 500})
	set := parseWithLimit(t, a.URL, nearlyUsed, fmt.Sprintf(proOf, 100))
	var members []*member
	for i := range 3 {
		members = append(members, startMember(t, broker.URL(), c, set, fmt.Sprint("m", i)))
	}
	var want []string
	step := func(change func(), states ...string) {
		t.Helper()
		c.change(change)
		want = append(want, states...)
		a.await(t, want...)
	}
	for i := range 5 {
		step(func() { c.totals[fmt.Sprint("nearly.pro.", i)] = 81 }, fmt.Sprintf("nearly.pro.%d firing", i))
	}
	step(func() { delete(c.totals, "nearly.pro.0") }, "nearly.pro.0 resolved") // no summary lists it
	for i, m := range members {
		m.kill()
		members[i] = startMember(t, broker.URL(), c, set, fmt.Sprint("n", i))
	}
	step(func() { c.totals["nearly.pro.5"] = 100 }, "nearly.pro.5 firing")
	useLimit := func(most int) {
		for _, m := range members {
			m.useRuleSet(parseWithLimit(t, a.URL, nearlyUsed, fmt.Sprintf(proOf, most)))
		}
	}
	useLimit(120) // 96
	a.await(t, append(want, "nearly.pro.1 resolved", "nearly.pro.2 resolved", "nearly.pro.3 resolved", "nearly.pro.4 resolved")...)
	want = append(want, "nearly.pro.1 resolved", "nearly.pro.2 resolved", "nearly.pro.3 resolved", "nearly.pro.4 resolved")
	useLimit(99) // 79
	want = append(want, "nearly.pro.1 firing", "nearly.pro.2 firing", "nearly.pro.3 firing", "nearly.pro.4 firing", "nearly.pro.cold firing")
	a.await(t, want...)
	step(func() {
		for key := range c.totals {
			c.totals[key] = 0
		}
	}, "nearly.pro.1 resolved", "nearly.pro.2 resolved", "nearly.pro.3 resolved", "nearly.pro.4 resolved", "nearly.pro.5 resolved", "nearly.pro.cold resolved")
}

// If a counter that no summary lists may be above, keys that certainly are fire, and the rule is unknown. If
// the prefix has few counters, all are read. A key whose prefix the file no longer has ends.
func TestRuleOfEachCounterIsUnknownIfOneMayBeMissing(t *testing.T) {
	t.Parallel()
	broker := stack.SharedNATS(t)
	c := newCounters(map[string]int64{"shop.a": 30, "shop.b": 9})
	rules := "- {name: r, prefix: shop., each: true, window: 1m, above: 20, to: [a]}\n"
	set := parseWithLimit(t, "http://127.0.0.1:1", rules, " []")
	m := startMember(t, broker.URL(), c, set, "m", func(s *service) { s.settings.MaxSum = 2 })
	js := broker.JetStream()
	awaitStates(t, js, "ok, shop.a firing")
	c.change(func() { c.floor, c.totals["shop.b"] = 25, 24 })
	awaitStates(t, js, "ok, shop.a firing, shop.b firing") // all two with the prefix are read
	c.set("shop.c", 1)
	awaitStates(t, js, "shop.a firing, shop.b firing, unknown counters in no top list may have up to 25 hits, and more than 2 counters begin like "+
		"this (WATCH_MAX_SUM)")
	c.change(func() { c.totals["shop.a"], c.totals["shop.b"] = 7, 7 }) // no longer listed
	awaitStates(t, js, "shop.a resolved, shop.b resolved, unknown counters in no top list may have up to 25 hits, and more than 2 counters begin like "+
		"this (WATCH_MAX_SUM)")
	c.change(func() { c.floor = 20 })
	awaitStates(t, js, "ok, shop.a resolved, shop.b resolved")
	c.change(func() { c.totals["shop.a"], c.totals["shop.b"], c.totals["shop.c"] = 30, 31, 32 })
	awaitStates(t, js, "shop.a resolved, shop.b firing, shop.c firing, unknown more than 2 counters may be above the threshold (WATCH_MAX_SUM)")
	c.change(func() { c.totals["shop.b"] = 0 })
	awaitStates(t, js, "ok, shop.a firing, shop.b resolved, shop.c firing")
	m.useRuleSet(parseWithLimit(t, "http://127.0.0.1:1", strings.Replace(rules, "shop.", "blog.", 1), " []"))
	const gone = "the rule, or this key of it, is not in WATCH_FILE any more"
	awaitStates(t, js, "ok, shop.a resolved "+gone+", shop.b resolved, shop.c resolved "+gone)
}

// A key whose counter has no room has no state of its own. Then the rule is unknown, and says why.
func TestKeysOfALimitWithoutRoomMakeItUnknown(t *testing.T) {
	t.Parallel()
	limits := fmt.Sprintf(proOf, 100)
	for prefix, reason := range map[string]string{
		"nearly.pro.": "counters of some keys have no room: their hits are on nearly.pro.~other.0 (INGEST_MAX_NAMES)",
		"nearly.":     "counters of some keys have no room: their hits are on nearly.~other.0 (INGEST_MAX_NAMES)",
		"nearly.free": "",
	} {
		store := newStore(t)
		store.Bounds = window.NameBounds{{Prefix: prefix, Max: 1}}
		newCommits(t, store)(time.Now(), 1, "nearly.pro.a", "nearly.pro.b", "nearly.free.c", "nearly.free.d")
		c := newCounters(map[string]int64{"nearly.pro.a": 90})
		q := querier{read.NewReader(store), fakeLimiter{c}, 10}
		set := parseWithLimit(t, "http://127.0.0.1:1", nearlyUsed, limits)
		current, err := q.query(t.Context(), set.Rules, func(*Rule) []string { return nil })
		require.NoError(t, err)
		require.Equal(t, "nearly.pro.", *set.Rules[0].Prefix)
		require.Equal(t, reason, current.results[0].Reason, prefix)
	}
}
