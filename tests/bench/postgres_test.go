package bench_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// postgresFigures are all measurements of the comparison with PostgreSQL.
type postgresFigures struct {
	Version         string
	Single, Batched string // hits per run
	Rows            []*candidate
	Answers         []*question
}

// postgresLoad is the workload of the comparison: shorter than the same one elsewhere, as PostgreSQL takes
// longer.
var postgresLoad = workload{"postgres", "100,000 counters, Zipf 1.1", 100_000, 1.1, 3_000_000, 6_000_000}

const (
	// What answers come from: this many counters, each with a cell for every minute of a day.
	postgresCounters = 1_000
	postgresDay      = 24 * 60

	postgresWriteDay = `INSERT INTO cells_%[1]d
		SELECT 'api-' || c, to_timestamp(floor(extract(epoch FROM now()) / %[1]d - back) * %[1]d), 100 * %[1]d
		FROM generate_series(%[2]d - 1, 0, -1) back, generate_series(0, %[3]d - 1) c ORDER BY back DESC, c`
)

func postgresCandidates(server func() *postgres) (all []*candidate) {
	for _, batched := range []bool{false, true} {
		theirs := func(name, cells string) *candidate {
			return &candidate{
				sample: sample{part: "postgres", name: name + form(batched)}, batched: batched,
				measure: func(t *testing.T, r *rig, s *stored) figures { return r.pgcount(t, server(), s, cells) },
			}
		}
		ours := worker("postgres", "Tallyroll, default tiers", batched, true, "TIERS="+window.DefaultTiers)
		rows := []*candidate{
			ours,
			worker("postgres", "Tallyroll, 1m/1d", batched, false, "TIERS=1m/1d"),
			theirs("Postgres, cells of 1 min", "1m"),
			theirs("Postgres, cells of 1 s, 1 min, 15 min and 6 h", "1s,1m,15m,6h"),
		}
		for _, c := range rows {
			c.Base = &ours.sample
		}
		all = append(all, rows...)
	}
	return all
}

// measurePostgres counts the same stream into Redis by the worker and into PostgreSQL by pgcount, in turns,
// and then asks both for the same total. It prints a line if there is no PostgreSQL to start.
func measurePostgres(t *testing.T, r *rig, o options, start func(testing.TB) *postgres) *postgresFigures {
	var server *postgres
	f := &postgresFigures{Single: o.hits(postgresLoad.single), Batched: o.hits(postgresLoad.batched)}
	f.Rows = chosen(o, postgresCandidates(func() *postgres { return server })...)
	answers := o.wants("postgres/answers")
	if len(f.Rows) == 0 && !answers {
		return nil
	}
	if server = start(t); server == nil {
		fmt.Println("SKIPPED: the comparison with Postgres, because postgres is missing: make postgres installs it")
		return nil
	}
	f.Version = server.ask("postgres", "SHOW server_version")
	countInTurns(t, r, o, f.Rows, streamsOf(r, o, postgresLoad))
	if answers {
		f.Answers = measureTotals(t, r, o, server)
	}
	return f
}

// pgcount counts a stream with the program in tests/bench/pgcount, from the moment at which it begins to read
// until its last transaction.
func (r *rig) pgcount(t *testing.T, p *postgres, s *stored, cells string) figures {
	t.Helper()
	p.empty()
	bytes := p.bytes()
	w := r.startPgcount(t, p, s.stream, cells)
	end := r.begin(t, p.seconds, w.PID())
	awaitCounted(t, 5*time.Millisecond, "all hits", func() (bool, error) { return allOf(s.hits, pgcounted(t, w), nil) })
	f := end(s.hits).addCounters(len(s.truth), p.bytes()-bytes)
	w.Kill()
	return f
}

// startPgcount returns when pgcount has made its tables, which is when it begins to read.
func (r *rig) startPgcount(t *testing.T, p *postgres, stream, cells string) *stack.Process {
	t.Helper()
	return stack.Server(t, p.program, func(port int) (args, env []string) {
		return nil, []string{
			"NATS_URL=" + r.nats.URL(), "DATABASE_URL=" + p.url("bench"), "STREAM=" + stream, "CELLS=" + cells,
			"ADDR=127.0.0.1:" + strconv.Itoa(port),
		}
	})
}

// pgcounted is how many hits pgcount has committed.
func pgcounted(t *testing.T, w *stack.Process) int {
	t.Helper()
	n, err := strconv.Atoi(string(mustFetch(t, http.DefaultClient, "http://"+w.Addr()+"/committed")))
	require.NoError(t, err)
	return n
}

// totalsAsked are the totals, and from which cells others than Tallyroll answer them.
var totalsAsked = []struct{ window, from, name string }{
	{"1h", "", "1 h"},
	{"1h", "1m", "1 h, 60 cells of 1 min"},
	{"24h", "", "24 h"},
	{"24h", "15m", "24 h, 96 cells of 15 min"},
	{"24h", "1m", "24 h, 1,440 cells of 1 min"},
}

// measureTotals asks Tallyroll, Postgres and SQLite for the same totals, over 8 and over 64 connections.
func measureTotals(t *testing.T, r *rig, o options, p *postgres) (all []*question) {
	r.fillQueried(t, densest)
	q := r.startQuery(t)
	w, l := r.fillPostgres(t, o, p), startSQLite(t, o)
	noStore := func() float64 { return 0 }
	client := httpClient(t, manyAskers)
	for _, n := range []int{askers, manyAskers} {
		add := func(name, url string, pid int, store clock) *question {
			a := &question{sample: sample{part: "postgres", name: fmt.Sprintf("%s, %d connections", name, n)}, askers: n}
			a.ask = func(i int) error { return getOnce(client, url+"&key="+counterName(i%densest)) }
			a.program, a.store = cpuOf(t, pid), store
			all = append(all, a)
			return a
		}
		var ours *question
		for _, asked := range totalsAsked {
			path := "/total?window=" + asked.window
			if asked.from == "" {
				ours = add("Tallyroll: "+asked.name, q.URL()+"/v1"+path, q.PID(), r.redisCPU(t))
				ours.Base = &ours.sample
				continue
			}
			path += "&cell=" + asked.from
			add("Postgres: "+asked.name, "http://"+w.Addr()+path, w.PID(), p.seconds).Base = &ours.sample
			add("SQLite: "+asked.name, "http://"+l.Addr()+path, l.PID(), noStore).Base = &ours.sample
		}
	}
	inTurns(t, o, all, func(t *testing.T, a *question, _ int) {
		a.press(t, max(o.seconds(2), 100*time.Millisecond))
	})
	return all
}

// startSQLite starts the program in tests/bench/pgcount/sqlitetotal, which writes what it is asked about.
func startSQLite(t *testing.T, o options) *stack.Process {
	t.Helper()
	program := buildOther(t, "./sqlitetotal", "CGO_ENABLED=1")
	file := filepath.Join(t.TempDir(), "cells.db")
	return stack.Server(t, program, func(port int) (args, env []string) {
		counters := strconv.Itoa(max(densest, o.size(postgresCounters)))
		return nil, []string{"FILE=" + file, "COUNTERS=" + counters, "ADDR=127.0.0.1:" + strconv.Itoa(port)}
	})
}

// fillPostgres writes a day of counters minute by minute, as counting would, and starts the program that
// answers.
func (r *rig) fillPostgres(t *testing.T, o options, p *postgres) *stack.Process {
	t.Helper()
	p.empty()
	s := r.fill(t, "ASKED", workloads[0], 0, 1)
	w := r.startPgcount(t, p, s.stream, "1m,15m")
	counters := max(densest, o.size(postgresCounters))
	for _, seconds := range []int{60, 900} {
		p.ask("bench", fmt.Sprintf(postgresWriteDay, seconds, postgresDay*60/seconds, counters))
	}
	p.ask("bench", "VACUUM ANALYZE")
	return w
}

// Pgcount counts right in all sizes of cells, each hit once even if it is killed in the middle, and answers
// right.
func checkPostgres(t *testing.T, r *rig) {
	p := startPostgres(t)
	if p == nil {
		t.Skip("SKIPPED: there is no PostgreSQL here; make postgres installs it") // make bench-smoke says so at its end
	}
	t.Run("counts", func(t *testing.T) { p.checkCounts(t, r) })
	t.Run("counts once", func(t *testing.T) { p.checkCountsOnce(t, r) })
	t.Run("answers", func(t *testing.T) { p.checkAnswers(t, r) })
}

// requireSums compares the hits of each counter in a table with what was stored.
func (p *postgres) requireSums(t *testing.T, s *stored, seconds int) {
	t.Helper()
	sums := strings.Fields(p.ask("bench", fmt.Sprintf("SELECT counter, sum(n) FROM cells_%d GROUP BY counter", seconds)))
	var want []string
	for i, n := range s.truth {
		want = append(want, fmt.Sprintf("%s|%d", counterName(i), n))
	}
	if !slices.Equal(slices.Sorted(slices.Values(sums)), slices.Sorted(slices.Values(want))) {
		t.Errorf("%s: the counters of %d hits differ in cells of %d s", s.stream, s.hits, seconds)
	}
}

func (p *postgres) checkCounts(t *testing.T, r *rig) {
	w := workload{counters: 40, zipf: 1.1}
	for _, s := range []*stored{r.fill(t, "HITS", w, 1500, 1), r.fill(t, "BATCHED", w, 1500, 100)} {
		f := r.pgcount(t, p, s, "1s,1m,15m,6h")
		if int(f["hits"]) != s.hits || f["rate"] <= 0 || int(f["counters"]) != len(s.truth) || f["MiB"] <= 0 {
			t.Errorf("%s: %+v", s.stream, f)
		}
		for _, seconds := range []int{1, 60, 900, 21_600} {
			p.requireSums(t, s, seconds)
			sql := "SELECT count(*) FROM cells_%[1]d WHERE extract(epoch FROM at)::bigint %% %[1]d <> 0"
			between := p.ask("bench", fmt.Sprintf(sql, seconds))
			require.Equal(t, "0", between, "cells that do not begin where cells of %d s do", seconds)
		}
	}
}

func (p *postgres) checkCountsOnce(t *testing.T, r *rig) {
	p.empty()
	s := r.fill(t, "HITS", workload{counters: 5_000}, 200_000, 1)
	w := r.startPgcount(t, p, s.stream, "1m")
	stack.Eventually(t, "the first commit", func() (bool, string) { return pgcounted(t, w) > 0, "" })
	w.Kill()
	again := r.startPgcount(t, p, s.stream, "1m")
	stack.Eventually(t, "the last message", func() (bool, string) {
		seq := p.ask("bench", "SELECT seq FROM positions")
		return seq == itoa(int64(s.last)), seq
	})
	p.requireSums(t, s, 60)
	// It ends if another process moves its position.
	p.ask("bench", "UPDATE positions SET seq = seq - 1")
	_, err := r.js.Publish(t.Context(), "hits.late", nil)
	require.NoError(t, err)
	require.Equal(t, 1, again.Wait())
	require.Contains(t, again.Logs(), "another process counts HITS")
	require.Equal(t, "0", p.ask("bench", "SELECT count(*) FROM cells_60 WHERE counter = 'late'"))
}

// What is asked for at a rate is a day of hits, and both tables are written.
func (p *postgres) checkAnswers(t *testing.T, r *rig) {
	o := options{runs: 1, scale: 0.001, only: regexp.MustCompile("^postgres/(answers|Tallyroll, default tiers, one)")}
	w := r.fillPostgres(t, o, p)
	for cell, hits := range map[string]int{"1m": 100 * 60, "15m": 100 * 900} {
		var answer struct{ Total int }
		url := "http://" + w.Addr() + "/total?window=24h&key=api-7&cell=" + cell
		require.NoError(t, json.Unmarshal(mustFetch(t, http.DefaultClient, url), &answer))
		// The oldest cell leaves the window once a new one begins.
		if day := 86_400 * 100; answer.Total > day || answer.Total < day-hits {
			t.Errorf("%s: %d", cell, answer.Total)
		}
	}
	w.Kill()
	tables := view{"Postgres": measurePostgres(t, r, o, func(testing.TB) *postgres { return p })}.tables(t, o)
	for _, row := range []string{
		"Tallyroll, default tiers, one hit a message",
		"Postgres: 24 h, 96 cells of 15 min, 8 connections",
		"SQLite: 1 h, 60 cells of 1 min, 64 connections",
	} {
		require.Contains(t, tables, "| "+row+" | ")
	}
}
