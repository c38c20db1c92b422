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

// Pgcount counts right in all sizes of cells, each hit once even if it is killed in the middle, and answers right.
func checkPostgres(t *testing.T, r *rig) {
	p := startPostgres(t)
	if p == nil {
		t.Skip("SKIPPED: there is no PostgreSQL here; make postgres installs it") // make bench-smoke says so at its end
	}
	t.Run("counts", func(t *testing.T) { p.checkCounts(t, r) })
	t.Run("counts once", func(t *testing.T) { p.checkCountsOnce(t, r) })
	t.Run("answers", func(t *testing.T) { p.checkAnswers(t, r) })
}

func (p *postgres) checkCounts(t *testing.T, r *rig) {
	w := workload{counters: 40, zipf: 1.1}
	for _, s := range []*stored{fill(t, r.js, "HITS", "hits", w, 1500, 1), fill(t, r.js, "BATCHED", "batched", w, 1500, 100)} {
		f := r.pgcount(t, p, s, "1s,1m,15m,6h", withoutSyncing)
		if f.hits != s.hits || f.seconds <= 0 || f.counters != s.distinct || f.redisBytes <= 0 || f.workerRSS <= 0 {
			t.Errorf("%s: %+v", s.stream, f)
		}
		for _, seconds := range []int{1, 60, 900, 21_600} {
			require.Equal(t, s.sums(), p.sums(seconds), "%s in cells of %d s", s.stream, seconds)
			between := p.ask("bench", fmt.Sprintf("SELECT count(*) FROM cells_%[1]d WHERE extract(epoch FROM at)::bigint %% %[1]d <> 0", seconds))
			require.Equal(t, "0", between, "cells that do not begin where cells of %d s do", seconds)
		}
	}
}

func (p *postgres) checkCountsOnce(t *testing.T, r *rig) {
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
	if !slices.Equal(p.sums(60), s.sums()) {
		t.Errorf("the counters of %d hits differ after a restart", s.hits)
	}
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
		require.NoError(t, json.Unmarshal(fetch(t, http.DefaultClient, "http://"+w.Addr()+"/total?window=24h&key=api-7&cell="+cell), &answer))
		// The oldest cell leaves the window once a new one begins.
		if day := 86_400 * 100; answer.Total > day || answer.Total < day-hits {
			t.Errorf("%s: %d", cell, answer.Total)
		}
	}
	w.Kill()
	tables := view{"Postgres": measurePostgres(t, r, o, func(testing.TB) *postgres { return p }).view()}.tables(t, r, o)
	for _, row := range []string{"| Tallyroll, default tiers, one hit a message | ", "| Postgres: 24 h, 96 cells of 15 min, 8 connections | ", "| SQLite: 1 h, 60 cells of 1 min, 64 connections | "} {
		require.Contains(t, tables, row)
	}
}
