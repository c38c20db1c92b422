package bench_test

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
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
		{"rules count right", checkRules},
		{"tiers", checkTiers},
		{"questions are answered", checkQuestions},
		{"dashboards are answered", checkDashboards},
		{"series have all points", checkSeries},
		{"uniques are answered", checkUniques},
		{"unique hits", checkUniqueHits},
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
	one := fill(t, r.js, "HITS", "hits", w, 1500, 1)
	check := func(t *testing.T, f figures, total func(counter string) (int64, error)) {
		t.Helper()
		if f.hits != one.hits || f.seconds <= 0 || f.counters != one.distinct {
			t.Errorf("figures %+v, want %d hits of %d counters", f, one.hits, one.distinct)
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
				if f.commands < int64(f.hits) {
					t.Errorf("%d commands for %d hits", f.commands, f.hits)
				}
			})
		}
	}
	batched := fill(t, r.js, "BATCHED", "batched", w, 1500, 100)
	for _, s := range []*stored{one, batched} {
		t.Run("tallyroll/"+s.stream, func(t *testing.T) {
			f := r.tallyroll(t, []*stored{s}, 1, "INGEST_STREAMS="+s.stream)
			reader := window.NewReader(window.NewStore(r.rdb, namespace))
			check(t, f, func(counter string) (int64, error) {
				out, err := reader.Answer(t.Context(), []window.Question{{Counter: counter, Span: window.Last(20 * time.Hour)}})
				if err != nil {
					return 0, err
				}
				return out.Answers[0].Total, nil
			})
		})
	}
	t.Run("ceiling", func(t *testing.T) {
		if f := r.ceiling(t, batched); f.hits != 1500 {
			t.Errorf("%+v", f)
		}
	})
}

// Whatever is asked at a rate must be answered, and right: the totals that are
// asked about, the hashes that are read beside them, and the events.
func checkQuestions(t *testing.T, r *rig) {
	const counters = 300
	r.fillQueried(t, counters)
	q := stack.Query(t, r.redis, "TALLYROLL_NAMESPACE="+namespace)
	if total := stack.TotalOf(t, q.URL(), counterName(7), "24h"); total.Total < 100*86_400*99/100 {
		t.Errorf("%+v; 100 hits a second were written", total)
	}
	for _, question := range r.questions(t, q.URL(), counters) {
		stack.Eventually(t, question.name, func() (bool, string) {
			err := question.ask(t.Context(), 7)
			if err != nil && !errors.Is(err, errRefused) {
				t.Fatal(err)
			}
			return err == nil, fmt.Sprint(err)
		})
		if question.name == healthName {
			a := &answering{question: question}
			a.press(t, q.PID(), r.redisClock(t), 10*time.Millisecond)
			if len(a.took) == 0 || a.last("rate") <= 0 || a.refused > 0 {
				t.Errorf("%+v", a)
			}
		}
	}
	stack.Eventually(t, "events", func() (bool, string) {
		rate, _ := r.listen(t, q, 20, time.Second)
		return rate > 0, ""
	})
	one, hundred := r.hashes(t)
	var sum int64
	for _, key := range one[7] {
		fields, err := r.rdb.HGetAll(t.Context(), key).Result()
		require.NoError(t, err)
		n, _, err := sumFields(fields, 0)
		require.NoError(t, err)
		sum += n
	}
	// Two hashes at most in each of the first three tiers, and five in that of 768 hours.
	if sum < 100*86_400 || len(hundred) < 4*densest || len(hundred) > 11*densest {
		t.Errorf("%d hits in the hashes of a total; %d hashes of all", sum, len(hundred))
	}
}

// What left the window is not in a technique's answer, and (but for the hash
// with a flag, which nobody cleans on a quiet day) nothing old is added again.
func TestTechniquesForget(t *testing.T) {
	client := stack.Redis(t).Client()
	now := time.Now().UnixMilli()
	for _, tech := range techniques {
		if tech.name == hoursAndFlag.name || tech.name == hourKeys.name {
			continue // they forget by Redis's own clock, or never
		}
		t.Run(tech.name, func(t *testing.T) {
			require.NoError(t, tech.load(t.Context(), client))
			pipe := client.Pipeline()
			for _, h := range []aHit{
				{tech.name, now - tech.window.Milliseconds() - 2*hour, 1},
				{tech.name, now - second, 1}, {tech.name, now, 1},
			} {
				tech.queue(t.Context(), pipe, h)
			}
			if _, err := pipe.Exec(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got, err := tech.total(t.Context(), client, tech.name, now); err != nil || got != 2 {
				t.Errorf("total %d %v, want 2", got, err)
			}
		})
	}
}
