package bench_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/boot"
	"tallyroll/tests/stack"
)

// answering is how one question was answered, in all rounds.
type answering struct {
	question question
	rounds   []pressed
}

// listening is how 1,000 clients of /v1/live were told.
type listening struct {
	rounds []heard
}

// queryFigures are of one state of the servers: idle, or counting a backlog.
type queryFigures struct {
	state string
	rows  []*answering
	live  *listening
	// worker is the hits per second that a worker counted beside each question and
	// beside none, by the question's name; empty where none ran.
	worker map[string][]float64
	ended  map[string]bool // the backlog ended under this question: too fast by that
}

const (
	idle = "idle"
	busy = "beside a backlog"
	// backlogHits last longer at the full speed of a worker than a measurement beside it.
	backlogHits = 2_000_000
	topCounters = 1_000_000
	nothing     = "nothing"
)

// measureQueries asks one query process, with nothing else going on and beside a
// worker that counts a backlog as fast as it can. Questions take turns, each
// round beginning with another one.
func measureQueries(t *testing.T, r *rig, o options) (out []*queryFigures) {
	counters := o.size(topCounters)
	var names []string
	for _, q := range questionNames(counters) {
		for _, state := range []string{idle, busy} {
			if path := "queries/" + state + "/" + q; o.wants(path) {
				names = append(names, path)
			}
		}
	}
	if len(names) == 0 {
		return nil
	}
	r.empty(t)
	r.fillQueried(t, max(counters, densest))
	fmt.Printf("queries: %d counters are written\n", max(counters, densest))
	q := stack.Query(t, r.redis, "TALLYROLL_NAMESPACE="+namespace, "LOG_LEVEL=warn")
	questions := r.questions(t, q.URL(), counters)
	length := max(o.seconds(2), time.Second)
	for _, state := range []string{idle, busy} {
		f := &queryFigures{state: state, worker: map[string][]float64{}, ended: map[string]bool{}}
		var backlog *stored
		if state == busy {
			backlog = fill(t, r.js, "ONE", "ONE", workloads[2], max(o.size(backlogHits), backlogHits/2), 1)
		}
		wanted := slices.DeleteFunc(slices.Clone(questions), func(q question) bool { return !o.wants("queries/" + state + "/" + q.name) })
		for _, q := range wanted {
			f.rows = append(f.rows, &answering{question: q})
		}
		if o.wants("queries/" + state + "/" + liveName) {
			f.live = &listening{}
		}
		for run := range o.runs {
			for i := range f.rows {
				row := f.rows[(i+run)%len(f.rows)]
				r.beside(t, f, backlog, row.question.name, func(t *testing.T) {
					p := row.question.press(t, q.PID(), func() float64 { return r.redisSeconds(t) }, length)
					row.rounds = append(row.rounds, p)
					fmt.Printf("queries/%s/%s run %d: %.0f/s, p50 %v, p99 %v\n", state, row.question.name, run+1, p.rate(), percentile(p.took, 50), percentile(p.took, 99))
				})
			}
			if backlog != nil {
				r.beside(t, f, backlog, nothing, func(*testing.T) { time.Sleep(length) })
			}
			if f.live != nil {
				r.beside(t, f, backlog, liveName, func(t *testing.T) {
					h := r.listen(t, q, liveClients, length)
					f.live.rounds = append(f.live.rounds, h)
					fmt.Printf("queries/%s/%s run %d: %.0f events/s, %.2f cores\n", state, liveName, run+1, h.rate(), h.cores())
				})
			}
		}
		out = append(out, f)
	}
	return out
}

// beside measures while a worker counts the backlog from its beginning, where
// there is one.
func (r *rig) beside(t *testing.T, f *queryFigures, backlog *stored, name string, measure func(t *testing.T)) {
	t.Helper()
	t.Run("queries/"+f.state+"/"+name, func(t *testing.T) {
		if backlog == nil {
			measure(t)
			return
		}
		w := r.drain(t, backlog)
		before, began := r.counted(t, w), time.Now()
		measure(t)
		after := r.counted(t, w)
		f.worker[name] = append(f.worker[name], float64(after-before)/time.Since(began).Seconds())
		f.ended[name] = f.ended[name] || after >= backlog.hits
		if code := w.Stop(); code != 0 {
			t.Errorf("the worker ended with %d", code)
		}
	})
	if t.Failed() {
		t.FailNow()
	}
}

// drain starts a worker at the beginning of a stream, and returns when it counts.
// What it counts has been counted before: only its work matters here.
func (r *rig) drain(t *testing.T, s *stored) *stack.Service {
	t.Helper()
	var cursors []string
	for shard := range queriedShards {
		cursors = append(cursors, fmt.Sprintf("%s:{%d}:cursor:%s", namespace, shard, s.stream))
	}
	require.NoError(t, r.rdb.Del(t.Context(), cursors...).Err())
	w := stack.Ingest(t, r.nats, r.redis, "TALLYROLL_NAMESPACE="+namespace, "INGEST_STREAMS="+s.stream, "LOG_LEVEL=warn")
	stack.Eventually(t, "the first commits", func() (bool, string) {
		n, err := hitsCounted(w)
		return n > 0, fmt.Sprint(n, err)
	})
	return w
}

func (r *rig) counted(t *testing.T, w *stack.Service) int {
	t.Helper()
	n, err := hitsCounted(w)
	require.NoError(t, err)
	return n
}

// view is the tables' rows: of the questions, and of the listeners.
func (f *queryFigures) view() (v queriesView) {
	v.State, v.Busy = f.state, f.state == busy
	for _, row := range f.rows {
		ofHealth, ofRedis := "–", "–"
		for _, other := range f.rows {
			switch other.question.name {
			case healthName:
				ofHealth = ratio(median(row.rates()), median(other.rates()))
			case row.question.beside:
				ofRedis = ratio(median(row.rates()), median(other.rates()))
			}
		}
		took := row.took()
		name := f.mark(row.question.name)
		if n := row.refused(); n > 0 {
			name += fmt.Sprintf(" (and %d refused with 503, of %d)", n, n+int64(len(took)))
		}
		cells := []string{name, spread(row.rates()), percentile(took, 50).String(), percentile(took, 99).String(), ofHealth, ofRedis, row.micros(pressed.query)}
		if v.Busy {
			cells = append(cells, boot.Thousands(median(f.worker[row.question.name])))
		} else {
			cells = append(cells, row.micros(pressed.store))
		}
		v.Rows = append(v.Rows, cellsOf(cells...))
	}
	v.Ended = slices.Contains(slices.Collect(maps.Values(f.ended)), true)
	if v.Busy {
		v.Alone = boot.Thousands(median(f.worker[nothing]))
	}
	if f.live != nil {
		var rates, cores []float64
		for _, h := range f.live.rounds {
			rates, cores = append(rates, h.rate()), append(cores, h.cores())
		}
		v.Live = cellsOf(f.mark(f.state), spread(rates), short(median(rates)/liveClients), short(median(cores)))
	}
	return v
}

// mark marks what the backlog was not long enough for.
func (f *queryFigures) mark(name string) string {
	if f.ended[name] || name == f.state && f.ended[liveName] {
		return name + " *"
	}
	return name
}

type queriesView struct {
	State       string
	Busy, Ended bool
	Rows        []string
	Alone       string // hits/s of the worker where nothing is asked
	Live        string
}

func (a *answering) rates() (out []float64) {
	for _, p := range a.rounds {
		out = append(out, p.rate())
	}
	return out
}

func (a *answering) took() (out []time.Duration) {
	for _, p := range a.rounds {
		out = append(out, p.took...)
	}
	return out
}

func (a *answering) refused() (n int64) {
	for _, p := range a.rounds {
		n += p.refused
	}
	return n
}

// micros is processor time by the request; none where the process had no part.
func (a *answering) micros(of func(pressed) float64) string {
	var values []float64
	for _, p := range a.rounds {
		values = append(values, of(p)*1e6/float64(len(p.took)))
	}
	if median(values) == 0 {
		return "–"
	}
	return short(median(values))
}
