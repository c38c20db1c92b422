package bench_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// queryFigures are of one state of the servers: idle, or counting a backlog.
type queryFigures struct {
	State string
	Busy  bool
	Rows  []*question
	Live  *question // nil if it was not measured
}

const (
	// backlogHits keep a worker at full speed busy for longer than a measurement takes.
	backlogHits = 2_000_000
	topCounters = 1_000_000
)

// measureQueries asks one query process, with nothing else going on and while a worker counts a backlog as
// fast as it can. Questions take turns, each round beginning with another one.
func measureQueries(t *testing.T, r *rig, o options) (out []*queryFigures) {
	counters := max(o.size(topCounters), densest)
	var asked *target
	get := func() *target { return asked }
	length := max(o.seconds(2), time.Second)
	for _, f := range []*queryFigures{{State: "idle"}, {State: "beside a backlog", Busy: true}} {
		part := "queries/" + f.State
		all := questions(part, counters, get)
		live := &question{sample: sample{part: part, name: liveName}}
		if !f.Busy {
			all = append(all, live)
		}
		if all = chosen(o, all...); len(all) == 0 {
			continue
		}
		if asked == nil {
			r.fillQueried(t, counters)
			fmt.Printf("queries: %d counters are written\n", counters)
			asked = r.startTarget(t)
		}
		var backlog *stored
		if f.Busy {
			backlog = r.fill(t, "ONE", workloads[2], max(o.size(backlogHits), backlogHits/2), 1)
		}
		inTurns(t, o, all, func(t *testing.T, q *question, _ int) {
			q.program, q.store = cpuOf(t, asked.query.PID()), r.redisCPU(t)
			switch {
			case q == live:
				rate, cores := listen(t, asked.query, liveClients, length)
				q.add("rate", rate)
				q.add("each", rate/liveClients)
				q.add("cores", cores)
			case f.Busy:
				w := r.drain(t, backlog)
				q.press(t, length)
				n, err := hitsCounted(w)
				require.NoError(t, err)
				q.marked = q.marked || n >= backlog.hits
				require.Equal(t, 0, w.Stop(), "how the worker ended")
			default:
				q.press(t, length)
			}
		})
		for _, q := range all {
			if q == live {
				f.Live = q
			} else {
				f.Rows = append(f.Rows, q)
			}
		}
		out = append(out, f)
	}
	return out
}

// drain starts a worker at the beginning of a stream, and returns when it counts.
// What it counts has been counted before: only its work matters here.
func (r *rig) drain(t *testing.T, s *stored) *stack.Service {
	t.Helper()
	r.dropCursors(t, s.stream)
	w := r.startIngest(t, s.stream)
	stack.Eventually(t, "the first commits", func() (bool, string) {
		n, err := hitsCounted(w)
		return n > 0, fmt.Sprint(n, err)
	})
	return w
}

// Whatever is asked at a rate must be answered, and right: the totals that are asked about, the hashes that
// are also read, and the events.
func checkQuestions(t *testing.T, r *rig) {
	const counters = 300
	r.fillQueried(t, counters)
	asked := r.startTarget(t)
	q := asked.query
	if total := stack.TotalOf(t, q.URL(), counterName(7), "24h"); total.Total < 100*86_400*99/100 {
		t.Errorf("%+v; 100 hits a second were written", total)
	}
	for i, question := range questions("queries", counters, func() *target { return asked }) {
		stack.Eventually(t, question.name, func() (bool, string) {
			err := question.ask(7)
			if err != nil && !errors.Is(err, errRefused) {
				t.Fatal(err)
			}
			return err == nil, fmt.Sprint(err)
		})
		if i == 0 {
			question.program, question.store = cpuOf(t, q.PID()), r.redisCPU(t)
			question.press(t, 10*time.Millisecond)
			if len(question.took) == 0 || question.last("rate") <= 0 || question.Refused > 0 {
				t.Errorf("%+v", question)
			}
		}
	}
	stack.Eventually(t, "events", func() (bool, string) {
		rate, _ := listen(t, q, 20, time.Second)
		return rate > 0, ""
	})
	var sum int64
	for _, key := range asked.one[7] {
		fields, err := r.rdb.HGetAll(t.Context(), key).Result()
		require.NoError(t, err)
		n, _, err := sumFields(fields, 0)
		require.NoError(t, err)
		sum += n
	}
	// Two hashes at most in each of the first three tiers, and five in that of 768 hours.
	if n := len(asked.hundred); sum < 100*86_400 || n < 4*densest || n > 11*densest {
		t.Errorf("%d hits in the hashes of a total; %d hashes of all", sum, n)
	}
}
