package bench_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// startPostgres skips the test if there is no PostgreSQL. make bench-smoke says so at its end.
func startPostgres(t *testing.T) *postgres {
	t.Helper()
	bin, found := findPostgres()
	if !found {
		t.Skip("SKIPPED: there is no PostgreSQL here; make postgres installs it")
	}
	return newPostgres(t, bin)
}

// sums are the hits of each counter in a table, as lines.
func (p *postgres) sums(seconds int) []string {
	return strings.Fields(p.ask("bench", fmt.Sprintf("SELECT counter, sum(n) FROM cells_%d GROUP BY counter ORDER BY counter COLLATE \"C\"", seconds)))
}

func (s *stored) sums() (lines []string) {
	for i, n := range s.truth {
		lines = append(lines, fmt.Sprintf("%s|%d", counterName(i), n))
	}
	slices.SortFunc(lines, func(a, b string) int {
		a, _, _ = strings.Cut(a, "|")
		b, _, _ = strings.Cut(b, "|")
		return strings.Compare(a, b)
	})
	return lines
}

// Pgcount counts right in all sizes of cells.
func TestPostgresCountsRight(t *testing.T) {
	r, p := newRig(t), startPostgres(t)
	w := workload{counters: 40, zipf: 1.1}
	for _, s := range []*stored{fill(t, r.js, "HITS", "hits", w, 1500, 1), fill(t, r.js, "BATCHED", "batched", w, 1500, 100)} {
		f := r.pgcount(t, p, s, "1s,1m,15m,6h", withoutSyncing)
		if f.hits != s.hits || f.seconds <= 0 || f.counters != s.distinct || f.redisBytes <= 0 || f.workerRSS <= 0 {
			t.Errorf("%s: %+v", s.stream, f)
		}
		for _, seconds := range []int{1, 60, 900, 21_600} {
			if got, want := p.sums(seconds), s.sums(); !slices.Equal(got, want) {
				t.Errorf("%s in cells of %d s:\n%v, want\n%v", s.stream, seconds, got, want)
			}
			if n := p.ask("bench", fmt.Sprintf("SELECT count(*) FROM cells_%[1]d WHERE extract(epoch FROM at)::bigint %% %[1]d <> 0", seconds)); n != "0" {
				t.Errorf("%s: %s cells do not begin where cells of %d s do", s.stream, n, seconds)
			}
		}
	}
}

// Pgcount counts each hit once if it is killed in the middle, and ends if somebody else moves its position.
func TestPostgresCountsOnce(t *testing.T) {
	r, p := newRig(t), startPostgres(t)
	p.empty()
	s := fill(t, r.js, "HITS", "hits", workload{counters: 5_000}, 200_000, 1)
	w := r.startPgcount(t, p, s.stream, "1m", withSyncing)
	stack.Eventually(t, "the first commit", func() (bool, string) { return pgcounted(t, w) > 0, "" })
	w.Kill()
	again := r.startPgcount(t, p, s.stream, "1m", withSyncing)
	stack.Eventually(t, "the last message", func() (bool, string) {
		seq := p.ask("bench", "SELECT seq FROM positions")
		return seq == itoa(int64(s.last)), seq
	})
	if got, want := p.sums(60), s.sums(); !slices.Equal(got, want) {
		t.Errorf("the counters of %d hits differ after a restart", s.hits)
	}
	p.ask("bench", "UPDATE positions SET seq = seq - 1")
	if _, err := r.js.Publish(t.Context(), "hits.late", nil); err != nil {
		t.Fatal(err)
	}
	if code := again.Wait(); code != 1 || !strings.Contains(again.Logs(), "another process counts HITS") {
		t.Errorf("it ended with %d: %s", code, again.Logs())
	}
	if got := p.ask("bench", "SELECT count(*) FROM cells_60 WHERE counter = 'late'"); got != "0" {
		t.Errorf("it counted the hit")
	}
}

// What is asked for at a rate is a day of hits, and both tables are written.
func TestPostgresAnswersRight(t *testing.T) {
	p := startPostgres(t)
	r, o := newRig(t), options{runs: 1, scale: 0.001, only: regexp.MustCompile("^postgres/(answers|Tallyroll, default tiers, one)")}
	w := r.fillPostgres(t, o, p)
	for cell, hits := range map[string]int{"1m": 100 * 60, "15m": 100 * 900} {
		var answer struct{ Total int }
		require.NoError(t, json.Unmarshal(fetch(t, http.DefaultClient, "http://"+w.Addr()+"/total?window=24h&key=api-7&cell="+cell), &answer))
		// The oldest cell leaves the window once a new one begins.
		if day := 86_400 * 100; answer.Total > day || answer.Total < day-hits {
			t.Errorf("%s: %d", cell, answer.Total)
		}
	}
	w.Kill()
	tables := (&report{options: o, rig: r, postgres: measurePostgres(t, r, o)}).tables(t)
	for _, row := range []string{"| Tallyroll, default tiers, one hit a message | ", "| Postgres: 24 h, 96 cells of 15 min, 8 connections | ", "| SQLite: 1 h, 60 cells of 1 min, 64 connections | "} {
		if !strings.Contains(tables, row) {
			t.Errorf("no row %q in %s", row, tables)
		}
	}
}
