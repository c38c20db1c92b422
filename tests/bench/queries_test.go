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

// queryFigures are of one state of the servers: idle, or counting a backlog.
type queryFigures struct {
	state string
	rows  []*answering
	live  sample // how 1,000 clients of /v1/live were told
	// worker is the hits per second that a worker counted beside each question and
	// beside none, by the question's name; empty where none ran.
	worker sample
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

func questionNames(counters int) []string {
	return []string{healthName, totalName, totalName + by64, manyName, seriesName, topName(counters), redisTotal, redisTotal + by64, redisMany}
}

// measureQueries asks one query process, with nothing else going on and beside a
// worker that counts a backlog as fast as it can. Questions take turns, each
// round beginning with another one.
func measureQueries(t *testing.T, r *rig, o options) (out []*queryFigures) {
	counters := max(o.size(topCounters), densest)
	path := func(state, question string) string { return "queries/" + state + "/" + question }
	var q *stack.Service
	var questions []question
	length := max(o.seconds(2), time.Second)
	for _, state := range []string{idle, busy} {
		f := &queryFigures{state: state, ended: map[string]bool{}}
		live := o.wants(path(state, liveName))
		if !live && len(chosen(o, func(name string) string { return path(state, name) }, questionNames(counters)...)) == 0 {
			continue
		}
		if q == nil {
			r.empty(t)
			r.fillQueried(t, counters)
			fmt.Printf("queries: %d counters are written\n", counters)
			q = stack.Query(t, r.redis, "TALLYROLL_NAMESPACE="+namespace, "LOG_LEVEL=warn")
			questions = r.questions(t, q.URL(), counters)
		}
		var backlog *stored
		if state == busy {
			backlog = fill(t, r.js, "ONE", "ONE", workloads[2], max(o.size(backlogHits), backlogHits/2), 1)
		}
		for _, q := range chosen(o, func(q question) string { return path(state, q.name) }, questions...) {
			f.rows = append(f.rows, &answering{question: q})
		}
		for run := range o.runs {
			for i := range f.rows {
				row := f.rows[(i+run)%len(f.rows)]
				r.beside(t, f, backlog, row.question.name, func(t *testing.T) {
					row.press(t, q.PID(), r.redisClock(t), length)
					fmt.Printf("%s run %d: %.0f/s, p50 %s, p99 %s\n", path(state, row.question.name), run+1, row.last("rate"), row.p(50), row.p(99))
				})
			}
			if backlog != nil {
				r.beside(t, f, backlog, nothing, func(*testing.T) { time.Sleep(length) })
			}
			if live {
				r.beside(t, f, backlog, liveName, func(t *testing.T) {
					rate, cores := r.listen(t, q, liveClients, length)
					f.live.add("rate", rate)
					f.live.add("cores", cores)
					fmt.Printf("%s run %d: %.0f events/s, %.2f cores\n", path(state, liveName), run+1, rate, cores)
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
	subtest(t, "queries/"+f.state+"/"+name, func(t *testing.T) {
		if backlog == nil {
			measure(t)
			return
		}
		w := r.drain(t, backlog)
		before, began := r.counted(t, w), time.Now()
		measure(t)
		after := r.counted(t, w)
		f.worker.add(name, float64(after-before)/time.Since(began).Seconds())
		f.ended[name] = f.ended[name] || after >= backlog.hits
		require.Equal(t, 0, w.Stop(), "how the worker ended")
	})
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

type queryTable struct {
	State       string
	Busy, Ended bool
	Rows        []string
	Alone       string // hits/s of the worker where nothing is asked
	Live        string
}

// queryTables are the tables of each state: of the questions, and of the listeners.
func queryTables(all []*queryFigures) (out []queryTable) {
	for _, f := range all {
		table := queryTable{State: f.state, Busy: f.state == busy, Ended: slices.Contains(slices.Collect(maps.Values(f.ended)), true)}
		for _, row := range f.rows {
			ofHealth, ofRedis := "–", "–"
			for _, other := range f.rows {
				switch other.question.name {
				case healthName:
					ofHealth = ratio(row.median("rate"), other.median("rate"))
				case row.question.beside:
					ofRedis = ratio(row.median("rate"), other.median("rate"))
				}
			}
			name := f.mark(row.question.name)
			if n := row.refused; n > 0 {
				name += fmt.Sprintf(" (and %d refused with 503, of %d)", n, n+int64(len(row.took)))
			}
			last := row.short("store")
			if table.Busy {
				last = boot.Thousands(f.worker.median(row.question.name))
			}
			table.Rows = append(table.Rows, cellsOf(name, spread(row.rounds["rate"]), row.p(50), row.p(99), ofHealth, ofRedis, row.short("query"), last))
		}
		if table.Busy {
			table.Alone = boot.Thousands(f.worker.median(nothing))
		}
		if rates := f.live.rounds["rate"]; rates != nil {
			table.Live = cellsOf(f.mark(f.state), spread(rates), short(median(rates)/liveClients), short(f.live.median("cores")))
		}
		out = append(out, table)
	}
	return out
}

// mark marks what the backlog was not long enough for.
func (f *queryFigures) mark(name string) string {
	if f.ended[name] || name == f.state && f.ended[liveName] {
		return name + " *"
	}
	return name
}
