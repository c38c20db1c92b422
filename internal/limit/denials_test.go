package limit

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A refusal is answered from memory, without a command, until the take can be allowed or a second has passed.
func testDeniedFromMemory(t *testing.T, policy Policy, fresh func(*testing.T) *world) {
	w, l := fresh(t), adhoc(t, time.Second, 5, policy)
	sent := watchCommands(w.client)
	// take asks, and says whether Redis was asked.
	take := func(n int64) (Decision, bool) {
		t.Helper()
		sent.scripts()
		a, err := w.limiter.Take(t.Context(), []Take{takeOf(l, "alice", n)})
		require.NoError(t, err)
		d := a.Decisions[0]
		asked := len(sent.scripts()) > 0
		if asked != (d.Source == SourceRedis) {
			t.Errorf("%s: Redis was asked: %v; %+v", policy, asked, d)
		}
		return d, asked
	}
	take(5)
	w.at(500) // so that the wait is shorter than memory
	first, asked := take(2)
	if first.Allowed || !asked {
		t.Fatalf("%s: %+v", policy, first)
	}
	wait := first.RetryAfter.Milliseconds()
	for _, at := range []int64{0, 1, wait - 1} {
		w.at(500 + at)
		for _, n := range []int64{2, 3, 5} {
			d, asked := take(n)
			if asked || d.Allowed || d.RetryAfter.Milliseconds() != wait-at {
				t.Errorf("%s, n %d at %d: %+v", policy, n, at, d)
			}
		}
	}
	w.at(500)
	_, asked = take(1) // fewer might fit
	if !asked {
		t.Errorf("%s: fewer hits were refused from memory", policy)
	}
	w.limiter.refusals.all = nil
	take(2)
	w.at(500 + wait)
	if d, asked := take(2); !d.Allowed || !asked {
		t.Errorf("%s: after the wait %+v", policy, d)
	}
}

func TestDenialsEndWhenTheyMayNotHold(t *testing.T) {
	t.Parallel()
	client := backends[2].start(t)
	for _, c := range []struct {
		name string
		end  func(w *world, full Take)
	}{
		{"a second later", func(w *world, _ Take) { w.at(1000) }},
		{"something is given back", func(w *world, full Take) {
			full.N = -2
			_, err := w.limiter.Take(t.Context(), []Take{full})
			require.NoError(t, err)
		}},
		{"reset", func(w *world, full Take) {
			require.NoError(t, w.limiter.Reset(t.Context(), full))
		}},
		{"max has changed", func(_ *world, full Take) { full.Limit.Max = 6 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, l := newWorld(t, client, c.name), adhoc(t, time.Hour, 5, Log)
			full := takeOf(l, "alice", 1)
			w.take(takeOf(l, "alice", 5))
			for _, want := range []Source{SourceRedis, SourceMemory} {
				a, err := w.limiter.Take(t.Context(), []Take{full})
				if err != nil || a.Decisions[0].Source != want {
					t.Fatalf("%+v, %v: want a decision from %s", a, err, want)
				}
			}
			c.end(w, full)
			a, err := w.limiter.Take(t.Context(), []Take{full})
			if err != nil || a.Decisions[0].Source != SourceRedis {
				t.Errorf("%+v, %v: want Redis to be asked", a, err)
			}
		})
	}
}

// Memory stays bounded, and makes room among what holds no longer.
func TestDenialsAreBounded(t *testing.T) {
	t.Parallel()
	var d refusals
	l := adhoc(t, time.Hour, 1, Log)
	now := time.UnixMilli(worldStart)
	for i := range RefusedKeys + 1000 {
		take := takeOf(l, fmt.Sprint(i), 1)
		d.remember(&take, take.Caller, state{wait: time.Hour}, now)
	}
	require.EqualValues(t, RefusedKeys, len(d.all))
	later := now.Add(refusedFor)
	for i := range 100 {
		take := takeOf(l, fmt.Sprint("later", i), 1)
		d.remember(&take, take.Caller, state{wait: time.Hour}, later)
		if _, ok := d.find(&take, take.Caller, later); !ok {
			t.Fatalf("the refusal %d is not remembered", i)
		}
	}
	require.Len(t, d.all, RefusedKeys)
}

func TestAccountsAreBounded(t *testing.T) {
	t.Parallel()
	var a accounts
	now := time.UnixMilli(worldStart)
	limit := adhoc(t, time.Hour, 1, Cells)
	takes, most := []Take{takeOf(limit, "", 1)}, 0
	for i := range 3 * LocalKeys {
		a.decideLocally(&request{takes: takes, keys: []string{fmt.Sprint(i)}, count: true}, now)
		most = max(most, len(a.all))
	}
	if most > LocalKeys || most < LocalKeys/2 {
		t.Errorf("there were %d accounts, want up to %d", most, LocalKeys)
	}
}

// Accounts that owe outlive those that do not, and those that are used outlive those that are not.
func TestAccountsThatOweOutliveOthers(t *testing.T) {
	t.Parallel()
	var all accounts
	now := time.UnixMilli(worldStart)
	take := func(key string) *request {
		return &request{takes: []Take{takeOf(adhoc(t, time.Hour, 100, Cells), "", 1)}, keys: []string{key}, count: true}
	}
	granted := func(key string) {
		r := take(key)
		r.entries = all.beginEntries(r, now)
		all.commit(r, []state{{counted: 1, upper: 3 * LocalKeys}}, now)
	}
	all.decideLocally(take("owes"), now)
	pending := take("pending")
	pending.entries = all.beginEntries(pending, now)
	granted("unused")
	for i := range 3 * LocalKeys {
		now = now.Add(time.Millisecond)
		granted(fmt.Sprint(i))
		if i%1000 == 0 {
			granted("used")
		}
	}
	for key, want := range map[string]int64{"owes": 1, "used": 3 * LocalKeys / 1000, "unused": 0, "pending": 0} {
		a, sum := all.all[key], int64(0)
		if a != nil {
			v := a.At(now, time.Hour)
			sum = v.Sum
		}
		if sum != want || (a == nil) != (key == "unused") {
			t.Errorf("the account %s has %d hits, want %d", key, sum, want)
		}
	}
	all.commit(pending, nil, now)
	if all.all["pending"] != nil {
		t.Error("an account without hits is kept")
	}
}

// A refusal of several takes has the decisions about all of them, however often it is repeated: about those
// that would be allowed, too.
func TestRepeatedRefusalHasAllDecisions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, backends[2].start(t), "all decisions")
	full, free, shadow := *adhoc(t, time.Hour, 1, Log), *adhoc(t, time.Hour, 100, Cells), *adhoc(t, time.Minute, 2, Cells)
	shadow.Mode = Shadow
	takes := []Take{takeOf(&free, "alice", 3), takeOf(&full, "alice", 1), takeOf(&shadow, "alice", 1)}
	w.take(takeOf(&full, "alice", 1))
	var first Answer
	for i, want := range []Source{SourceRedis, SourceMemory, SourceMemory} {
		a, err := w.limiter.Take(t.Context(), takes)
		require.NoError(t, err)
		require.False(t, a.Allowed)
		require.Len(t, a.Decisions, len(takes), "refusal %d", i)
		for k := range a.Decisions {
			require.Equal(t, want, a.Decisions[k].Source)
			a.Decisions[k].Source = ""
		}
		if i == 0 {
			first = a
		}
		require.Equal(t, first, a)
	}
	more := slices.Clone(takes)
	more[0].N = 4 // nothing is known about so many
	a, err := w.limiter.Take(t.Context(), more)
	require.NoError(t, err)
	require.Len(t, a.Decisions, len(takes))
	require.Equal(t, SourceRedis, a.Decisions[0].Source)
	a, err = w.limiter.Take(t.Context(), []Take{takes[0]})
	require.NoError(t, err)
	require.True(t, a.Allowed, "a take alone, which no limit refuses")
}
