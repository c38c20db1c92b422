package bench_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/boot"
	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// postgresFigures are all that is measured beside PostgreSQL.
type postgresFigures struct {
	version string
	hits    [2]int // of a run, one and 100 to a message
	rows    []*row
	answers []*answering
}

// postgresLoad is the workload of the comparison: shorter than the same one elsewhere, as PostgreSQL takes longer.
var postgresLoad = workload{"postgres", "100,000 counters, Zipf 1.1", 100_000, 1.1, 3_000_000, 6_000_000}

const (
	manyTiers = "1s/1h,1m/1d,1h/92d"
	// What answers come from: so many counters, each with a cell for every minute of a day.
	postgresCounters = 1_000
	postgresDay      = 24 * 60

	postgresWays     = "postgres/"
	withoutSyncing   = "-csynchronous_commit%3Doff"
	withSyncing      = "-csynchronous_commit%3Don"
	postgresWriteDay = `INSERT INTO cells_%[1]d SELECT 'api-' || c, to_timestamp(floor(extract(epoch FROM now()) / %[1]d - back) * %[1]d), 100 * %[1]d
		FROM generate_series(%[2]d - 1, 0, -1) back, generate_series(0, %[3]d - 1) c ORDER BY back DESC, c`
)

func postgresCandidates(start func() *postgres) (out []candidate) {
	for _, batched := range []bool{false, true} {
		form := forms[batched]
		theirs := func(name, cells, options string) candidate {
			return candidate{name + form, pipelines, batched, false, func(t *testing.T, r *rig, s *stored) figures {
				return r.pgcount(t, start(), s, cells, options)
			}}
		}
		out = append(out,
			worker("Tallyroll, default tiers"+form, batched, true, "TIERS="+window.DefaultTiers),
			worker("Tallyroll, "+manyTiers+form, batched, false, "TIERS="+manyTiers),
			worker("Tallyroll, 1m/1d"+form, batched, false, "TIERS=1m/1d"),
			theirs("Postgres, cells of 1 min", "1m", withSyncing),
			theirs("Postgres, cells of 1 min, synchronous_commit=off", "1m", withoutSyncing),
			theirs("Postgres, cells of 1 s, 1 min, 15 min and 6 h", "1s,1m,15m,6h", withSyncing),
		)
	}
	return out
}

// measurePostgres counts the same stream into Redis by the worker and into PostgreSQL by pgcount, in turns, and
// then asks both for the same total. It says so if there is no PostgreSQL to start.
func measurePostgres(t *testing.T, r *rig, o options, start func(testing.TB) *postgres) *postgresFigures {
	var server *postgres
	f := &postgresFigures{hits: [2]int{o.size(postgresLoad.single), o.size(postgresLoad.batched)}}
	f.rows = rowsOf(o, postgresWays, postgresCandidates(func() *postgres { return server }))
	answers := o.wants(postgresWays + "answers")
	if len(f.rows) == 0 && !answers {
		return nil
	}
	if server = start(t); server == nil {
		fmt.Println("SKIPPED: the comparison with Postgres, for want of postgres: make postgres installs it")
		return nil
	}
	f.version = server.ask("postgres", "SHOW server_version")
	countInTurns(t, r, o, postgresWays, f.rows, streamsOf(r, o, postgresLoad))
	if answers {
		f.answers = measureTotals(t, r, o, server)
	}
	return f
}

// pgcount counts a stream with the program in tests/bench/pgcount, from the moment at which it begins to read until its
// last transaction.
func (r *rig) pgcount(t *testing.T, p *postgres, s *stored, cells, options string) figures {
	t.Helper()
	p.empty()
	bytes := p.bytes()
	w := r.startPgcount(t, p, s.stream, cells, options)
	began, worker, database, broker := time.Now(), cpuSince(t, w.PID()), p.seconds(), cpuSince(t, r.nats.PID())
	awaitCounted(t, 5*time.Millisecond, "all hits", func() (bool, error) { return allOf(s.hits, pgcounted(t, w), nil) })
	f := figures{hits: s.hits, seconds: time.Since(began).Seconds(), counters: s.distinct}
	f.workerCPU, f.redisCPU, f.brokerCPU = worker(), p.seconds()-database, broker()
	f.redisBytes, f.workerRSS = p.bytes()-bytes, peakBytes(t, w.PID())
	w.Kill()
	return f
}

// buildOther builds a program of the module in tests/bench/pgcount.
func buildOther(t testing.TB, pkg string, env ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	cmd := exec.Command("go", "build", "-C", "pgcount", "-trimpath", "-o", path, pkg)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
	return path
}

// startPgcount returns when pgcount has made its tables, which is when it begins to read.
func (r *rig) startPgcount(t *testing.T, p *postgres, stream, cells, options string) *stack.Process {
	t.Helper()
	return stack.Server(t, p.program, func(port int) (args, env []string) {
		return nil, []string{
			"NATS_URL=" + r.nats.URL(), "DATABASE_URL=" + p.url(options), "STREAM=" + stream, "CELLS=" + cells,
			"ADDR=127.0.0.1:" + strconv.Itoa(port),
		}
	})
}

// pgcounted is how many hits pgcount has committed.
func pgcounted(t *testing.T, w *stack.Process) int {
	t.Helper()
	text := fetch(t, http.DefaultClient, "http://"+w.Addr()+"/committed")
	n, err := strconv.Atoi(string(text))
	require.NoError(t, err)
	return n
}

// totalAsked is one total: of a window, and from which cells others than Tallyroll answer it.
type totalAsked struct{ window, name, cell string }

var totalsAsked = []totalAsked{
	{"1h", "1 h, 60 cells of 1 min", "1m"},
	{"24h", "24 h, 96 cells of 15 min", "15m"},
	{"24h", "24 h, 1,440 cells of 1 min", "1m"},
}

// totalsServer is a program that answers totals.
type totalsServer struct {
	name  string
	url   func(totalAsked) string // without the counter
	pid   int
	store func() float64 // processor seconds of what it reads
}

// measureTotals asks Tallyroll, Postgres and SQLite for the same totals, over 8 and over 64 connections.
func measureTotals(t *testing.T, r *rig, o options, p *postgres) (out []*answering) {
	r.empty(t)
	r.fillQueried(t, densest)
	q := stack.Query(t, r.redis, "TALLYROLL_NAMESPACE="+namespace, "LOG_LEVEL=warn")
	w, l := r.fillPostgres(t, o, p), startSQLite(t, o)
	others := func(addr string) func(totalAsked) string {
		return func(a totalAsked) string {
			return "http://" + addr + "/total?window=" + a.window + "&cell=" + a.cell + "&key="
		}
	}
	servers := []totalsServer{
		{"Tallyroll", func(a totalAsked) string { return q.URL() + "/v1/total?window=" + a.window + "&key=" }, q.PID(), r.redisClock(t)},
		{"Postgres", others(w.Addr()), w.PID(), p.seconds},
		{"SQLite", others(l.Addr()), l.PID(), func() float64 { return 0 }},
	}
	client := httpClient(t, manyAskers)
	serverOf := map[*answering]totalsServer{}
	for _, n := range []int{askers, manyAskers} {
		for _, asked := range totalsAsked {
			for _, server := range servers {
				url := server.url(asked)
				a := &answering{question: question{
					name: fmt.Sprintf("%s: %s, %d connections", server.name, asked.name, n), beside: fmt.Sprintf("%s %s %d", servers[0].name, asked.window, n),
					askers: n, ask: func(ctx context.Context, i int) error {
						return askOnce(ctx, client, http.MethodGet, url+counterName(i%densest), "")
					},
				}}
				if server.name == servers[0].name {
					if asked.window == "24h" && asked.cell == "1m" {
						continue // it answers from its own cells
					}
					a.question.name = fmt.Sprintf("%s: %s, %d connections", server.name, strings.ReplaceAll(asked.window, "h", " h"), n)
				}
				out = append(out, a)
				serverOf[a] = server
			}
		}
	}
	inTurns(t, o, out, func(a *answering) string { return postgresWays + a.question.name }, func(t *testing.T, a *answering, run int) {
		a.press(t, serverOf[a].pid, serverOf[a].store, max(o.seconds(2), 100*time.Millisecond))
		fmt.Printf("%s%s run %d: %.0f/s\n", postgresWays, a.question.name, run+1, a.last("rate"))
	})
	return out
}

// startSQLite starts the program in tests/bench/pgcount/sqlitetotal, which writes what it is asked about.
func startSQLite(t *testing.T, o options) *stack.Process {
	t.Helper()
	program := buildOther(t, "./sqlitetotal", "CGO_ENABLED=1")
	file := filepath.Join(t.TempDir(), "cells.db")
	return stack.Server(t, program, func(port int) (args, env []string) {
		return nil, []string{"FILE=" + file, "COUNTERS=" + strconv.Itoa(max(densest, o.size(postgresCounters))), "ADDR=127.0.0.1:" + strconv.Itoa(port)}
	})
}

// fillPostgres writes a day of counters minute by minute, as counting would, and starts the program that answers.
func (r *rig) fillPostgres(t *testing.T, o options, p *postgres) *stack.Process {
	t.Helper()
	p.empty()
	s := fill(t, r.js, "ASKED", "ASKED", workloads[0], 0, 1)
	w := r.startPgcount(t, p, s.stream, "1m,15m", withSyncing)
	counters := max(densest, o.size(postgresCounters))
	for _, seconds := range []int{60, 900} {
		p.ask("bench", fmt.Sprintf(postgresWriteDay, seconds, postgresDay*60/seconds, counters))
	}
	p.ask("bench", "VACUUM ANALYZE")
	return w
}

type postgresView struct {
	Version         string
	Single, Batched string // hits per run
	Rows, Answers   []string
}

// view is the rows of the tables; ratios are to the default tiers in the same form of messages, and to our answer.
func (f *postgresFigures) view() *postgresView {
	if f == nil {
		return nil
	}
	v := &postgresView{Version: f.version, Single: boot.Thousands(float64(f.hits[0])), Batched: boot.Thousands(float64(f.hits[1]))}
	for _, r := range f.rows {
		of := r.of(f.rows, func(other *row) bool { return other.candidate.fresh && r.sameForm(other) })
		v.Rows = append(v.Rows, cellsOf(r.candidate.name, spread(r.rates()), of,
			r.micros(figures.worker), r.micros(figures.redis), r.micros(figures.broker), r.bytesPerCounter(), r.rss()))
	}
	for _, a := range f.answers {
		// Tallyroll's is the first.
		ours := slices.IndexFunc(f.answers, func(other *answering) bool { return other.question.beside == a.question.beside })
		v.Answers = append(v.Answers, cellsOf(a.question.name, spread(a.rounds["rate"]), ratio(a.median("rate"), f.answers[ours].median("rate")),
			a.p(50), a.p(99), a.short("query"), a.short("store")))
	}
	return v
}
