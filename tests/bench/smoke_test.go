package bench_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/stack"
)

func TestMain(m *testing.M) {
	if addr := os.Getenv(bareEnv); addr != "" {
		serveBare(addr)
	}
	stack.Main(m)
}

// Each measurement, small and on the same servers: what is compared counts, answers and decides right.
func TestMeasurementsCountAnswerAndDecideRight(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		name  string
		check func(*testing.T, *rig)
	}{
		{"candidates count right", checkCandidates},
		{"aged counters are counted", checkAged},
		{"rules count right", checkRules},
		{"tiers", checkTiers},
		{"questions are answered", checkQuestions},
		{"dashboards are answered", checkDashboards},
		{"totals are those of lived counters", checkLived},
		{"series have all points", checkSeries},
		{"uniques are answered and counted", checkUniques},
		{"collect stores", checkCollect},
		{"limiters limit", checkLimiters},
		{"ways decide", checkWays},
		{"masters share the work", checkMasters},
		{"Postgres", checkPostgres},
		{"sizing knows memory", checkSizingOfMemory},
		{"sizing knows commands", checkSizingOfCommands},
	} {
		t.Run(c.name, func(t *testing.T) {
			r.empty(t)
			c.check(t, r)
		})
	}
}

// Each technique, as written and pipelined, and the worker count the same stream.
func checkCandidates(t *testing.T, r *rig) {
	w := workload{counters: 40, zipf: 1.1}
	const hits = 550 // the last pipeline and the last batch are not full
	one, batched := r.fill(t, "HITS", w, hits, 1), r.fill(t, "BATCHED", w, hits, 100)
	check := func(t *testing.T, f figures, total func(counter string) (int64, error)) {
		t.Helper()
		if int(f["hits"]) != one.hits || f["rate"] <= 0 || int(f["counters"]) != len(one.truth) {
			t.Errorf("figures %+v, want %d hits of %d counters", f, one.hits, len(one.truth))
		}
		for i, want := range one.truth {
			if got, err := total(counterName(i)); err != nil || got != want {
				t.Errorf("%s: %d %v, want %d", counterName(i), got, err, want)
			}
		}
	}
	for _, tech := range techniques {
		for name, batch := range map[string]int{"as written": 0, "pipelined": 100} {
			t.Run(tech.name+"/"+name, func(t *testing.T) {
				f := r.technique(t, one, tech, batch, time.Minute)
				check(t, f, func(counter string) (int64, error) {
					return tech.total(t.Context(), r.rdb, counter, time.Now().UnixMilli())
				})
				if f["commands"] < 1 {
					t.Errorf("%v commands per hit", f["commands"])
				}
			})
		}
	}
	for _, s := range []*stored{one, batched} {
		t.Run("tallyroll/"+s.stream, func(t *testing.T) {
			f := r.tallyroll(t, []*stored{s}, s.stream, 1)
			reader := read.NewReader(schema.NewStore(r.rdb, namespace))
			check(t, f, func(counter string) (int64, error) {
				out, err := reader.Answer(t.Context(), []window.Question{{Counter: counter, Span: window.Last(20 * time.Hour)}})
				if err != nil {
					return 0, err
				}
				return out.Answers[0].Total, nil
			})
		})
	}
	require.InDelta(t, hits, r.ceiling(t, batched)["hits"], 0)
}
