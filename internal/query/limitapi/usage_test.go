package limitapi

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"tallyroll/internal/limit"
	"tallyroll/internal/limit/limitfile"
)

// modelled is one decision, as the model keeps it: all of them, for ever.
type modelled struct {
	at  time.Time
	key string
	o   outcome
}

// Whatever is decided when, totals and rates are exact, and every key has between decisions-error and
// decisions, and one that is not listed at most others_at_most.
func TestUsageAgainstAModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		start := time.Unix(1_760_000_000, rapid.Int64Range(0, 999_999_999).Draw(t, "nanosecond"))
		now := start
		use := newUsage(now)
		var all []modelled
		names := rapid.IntRange(1, 4*busiestKeys).Draw(t, "names")
		for range rapid.IntRange(1, 30).Draw(t, "rounds") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(3*busiestFor)).Draw(t, "pause")))
			for i := range rapid.IntRange(0, 300).Draw(t, "decisions") {
				// The first names come more often.
				n := rapid.IntRange(0, names-1).Draw(t, "name") * rapid.IntRange(0, 3).Draw(t, "share") / 3
				m := modelled{now.Add(time.Duration(i) * time.Millisecond), strconv.Itoa(n), outcome(rapid.IntRange(0, 3).Draw(t, "outcome"))}
				use.add(m.key, m.o, m.at)
				all = append(all, m)
			}
			now = now.Add(time.Second)
		}
		compare(t, use.state(now, busiestKeys), all, start, now)
	})
}

func compare(t *rapid.T, got LimitState, all []modelled, start, now time.Time) {
	t.Helper()
	var total, minute tally
	counted, refusals := map[string]uint64{}, map[string]uint64{}
	for _, m := range all {
		total[m.o]++
		if second := m.at.Unix(); second < now.Unix() && second >= now.Unix()-rateSeconds {
			minute[m.o]++
		}
		if !m.at.Before(got.BusiestSince) {
			counted[m.key]++
			if m.o == outcomeRefused || m.o == outcomeWouldRefuse {
				refusals[m.key]++
			}
		}
	}
	if (tally{got.Allowed, got.Refused, got.Failed, got.WouldRefuse}) != total {
		t.Fatalf("totals %+v, want %+v", got, total)
	}
	seconds := float64(min(rateSeconds, max(1, now.Unix()-start.Unix())))
	for _, r := range []struct {
		got  float64
		want uint64
	}{{got.AllowedRate, minute[outcomeAllowed]}, {got.RefusedRate, minute[outcomeRefused]}, {got.FailedRate, minute[outcomeFailed]}, {got.WouldRate, minute[outcomeWouldRefuse]}} {
		if r.got != float64(r.want)/seconds {
			t.Fatalf("%v per second, want %d in %v seconds", r.got, r.want, seconds)
		}
	}
	if age := now.Sub(got.BusiestSince); age > 2*busiestFor {
		t.Fatalf("the busiest keys are those of %v", age)
	}
	listed := map[string]bool{}
	for _, b := range got.Busiest {
		listed[b.Key] = true
		truth := counted[b.Key]
		if b.Decisions < truth || b.Decisions-b.Error > truth || b.Refused > refusals[b.Key] || b.Refused+b.Error < refusals[b.Key] {
			t.Fatalf("%+v, but there were %d, %d of them refused", b, truth, refusals[b.Key])
		}
	}
	for key, n := range counted {
		if !listed[key] && n > got.OthersAtMost {
			t.Fatalf("%s had %d decisions and is not listed; others have at most %d", key, n, got.OthersAtMost)
		}
	}
}

// However many keys there are, a sketch holds a hundred, and errs by no more than a hundredth of the
// decisions.
func TestSketchIsBounded(t *testing.T) {
	t.Parallel()
	var s sketch
	for i := range 50_000 {
		s.add(strconv.Itoa(i), false)
		s.add("one", true)
	}
	if len(s.keys) != busiestKeys || len(s.indexes) != busiestKeys || s.floor() > 100_000/busiestKeys {
		t.Errorf("%d keys, %d indexes, floor %d", len(s.keys), len(s.indexes), s.floor())
	}
	found, floor := mergeBusiest(new(sketch), &s, 1)
	if len(found) != 1 || found[0].Key != "one" || found[0].Decisions < 50_000 || found[0].Decisions-found[0].Error > 50_000 || floor != s.floor() && floor == 0 {
		t.Errorf("%+v, others %d", found, floor)
	}
}

func named(name string) *limitfile.Limit { return &limitfile.Limit{Limit: limit.Limit{Name: name}} }

// A limit that stays keeps its numbers when the file is read again. One that is gone is forgotten.
func TestUsageFollowsTheFile(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_760_000_000, 0)
	u := &limits{now: func() time.Time { return now }}
	stays, goes := named("stays"), named("goes")
	u.setLimits(limitfile.Set{"stays": stays, "goes": goes})
	for _, l := range []*limitfile.Limit{stays, goes, {}} {
		u.count(&limit.Take{Limit: &l.Limit, Key: "a"}, outcomeAllowed, now)
	}
	u.setLimits(limitfile.Set{"stays": {Limit: limit.Limit{Name: "stays", Max: 7}}, "comes": named("comes")})
	if got := *u.usages.Load(); len(got) != 2 || got["stays"].total[outcomeAllowed] != 1 || got["comes"] == nil {
		t.Errorf("%v", got)
	}
}

// BenchmarkDecided measures what noting a decision adds: the counter of /metrics alone, and with what
// /v1/limits needs, of one key, of a hundred, and of keys that are all new, which look for the fewest each
// time.
func BenchmarkDecided(b *testing.B) {
	lim := named("login")
	keys := make([]string, 1<<16)
	for i := range keys {
		keys[i] = fmt.Sprintf("customer-%d", i)
	}
	for _, c := range []struct {
		name  string
		keys  int
		named limitfile.Set
	}{{"metrics", 1, nil}, {"one", 1, limitfile.Set{"login": lim}}, {"hundred", 100, limitfile.Set{"login": lim}}, {"new", len(keys), limitfile.Set{"login": lim}}} {
		s := &outcomes{limits: &limits{now: time.Now}, decisions: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "d"}, []string{"limit", "result", "source"})}
		s.limits.setLimits(c.named)
		for _, parallel := range []bool{false, true} {
			decide := func(i int) {
				s.countDecisions(&limit.Answer{Decisions: []limit.Decision{{Take: limit.Take{Limit: &lim.Limit, Key: keys[i%c.keys]}, Allowed: true, WouldAllow: true, Source: limit.SourceRedis}}})
			}
			b.Run(fmt.Sprintf("%s/parallel=%v", c.name, parallel), func(b *testing.B) {
				b.ReportAllocs()
				if !parallel {
					for i := range b.N {
						decide(i)
					}
					return
				}
				b.RunParallel(func(p *testing.PB) {
					for i := 0; p.Next(); i++ {
						decide(i)
					}
				})
			})
		}
	}
}
