package limitapi

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"tallyroll/internal/limit"
	"tallyroll/internal/limit/limitfile"
)

// modelled is one decision, as the model keeps it: all of them, for ever.
type modelled struct {
	at time.Time
	o  outcome
}

// Whatever is decided when, totals and rates are exact.
func TestUsageAgainstAModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		start := time.Unix(1_760_000_000, rapid.Int64Range(0, 999_999_999).Draw(t, "nanosecond"))
		now := start
		use := &usage{since: now}
		var all []modelled
		for range rapid.IntRange(1, 30).Draw(t, "rounds") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(10*time.Minute)).Draw(t, "pause")))
			for i := range rapid.IntRange(0, 300).Draw(t, "decisions") {
				m := modelled{now.Add(time.Duration(i) * time.Millisecond), outcome(rapid.IntRange(0, 3).Draw(t, "outcome"))}
				use.add(m.o, m.at)
				all = append(all, m)
			}
			now = now.Add(time.Second)
		}
		compare(t, use.state(now), all, start, now)
	})
}

func compare(t *rapid.T, got LimitState, all []modelled, start, now time.Time) {
	t.Helper()
	var total, minute tally
	for _, m := range all {
		total[m.o]++
		if second := m.at.Unix(); second < now.Unix() && second >= now.Unix()-rateSeconds {
			minute[m.o]++
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
		u.count(l.Name, outcomeAllowed, now)
	}
	u.setLimits(limitfile.Set{"stays": {Limit: limit.Limit{Name: "stays", Max: 7}}, "comes": named("comes")})
	if got := *u.usages.Load(); len(got) != 2 || got["stays"].total[outcomeAllowed] != 1 || got["comes"] == nil {
		t.Errorf("%v", got)
	}
}

// BenchmarkDecided measures what noting a decision adds: the counter of /metrics alone, and with what
// /v1/limits needs.
func BenchmarkDecided(b *testing.B) {
	lim := named("login")
	for _, c := range []struct {
		name  string
		named limitfile.Set
	}{{"metrics", nil}, {"named", limitfile.Set{"login": lim}}} {
		s := &outcomes{limits: &limits{now: time.Now}, decisions: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "d"}, []string{"limit", "result", "source"})}
		s.limits.setLimits(c.named)
		for _, parallel := range []bool{false, true} {
			decide := func() {
				s.countDecisions(&limit.Answer{Decisions: []limit.Decision{{Take: limit.Take{Limit: &lim.Limit, Key: "alice"}, Allowed: true, WouldAllow: true, Source: limit.SourceRedis}}})
			}
			b.Run(fmt.Sprintf("%s/parallel=%v", c.name, parallel), func(b *testing.B) {
				b.ReportAllocs()
				if !parallel {
					for b.Loop() {
						decide()
					}
					return
				}
				b.RunParallel(func(p *testing.PB) {
					for p.Next() {
						decide()
					}
				})
			})
		}
	}
}
