package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"tallyroll/tests/bench/pgcount/totals"
)

// store is a table per size of cells, and the stream's position.
type store struct {
	db        *pgxpool.Pool
	stream    string
	cells     []time.Duration // finest first
	seq       uint64          // the last message that is written
	committed atomic.Int64    // hits, by this process
}

// prepare makes what is missing, and reads the position.
func (s *store) prepare(ctx context.Context) error {
	var sql strings.Builder
	for _, cell := range s.cells {
		// Pages with room let an update stay on its page, without a change of the index.
		fmt.Fprintf(&sql, "CREATE TABLE IF NOT EXISTS %s (counter text, at timestamptz, n bigint NOT NULL,"+
			" PRIMARY KEY (counter, at)) WITH (fillfactor = 80);\n", totals.Table(cell))
	}
	sql.WriteString("CREATE TABLE IF NOT EXISTS positions (stream text PRIMARY KEY, seq bigint NOT NULL)")
	if _, err := s.db.Exec(ctx, sql.String()); err != nil {
		return err
	}
	if _, err := s.db.Exec(ctx, "INSERT INTO positions VALUES ($1, 0) ON CONFLICT DO NOTHING", s.stream); err != nil {
		return err
	}
	return s.db.QueryRow(ctx, "SELECT seq FROM positions WHERE stream = $1", s.stream).Scan(&s.seq)
}

// write adds a load to the cells and moves the position, in one transaction. It fails if the position has
// moved meanwhile: then another process counts the stream.
func (s *store) write(ctx context.Context, l *load) error {
	err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		moved, err := tx.Exec(ctx, "UPDATE positions SET seq = $3 WHERE stream = $1 AND seq = $2", s.stream, s.seq, l.seq)
		if err != nil {
			return err
		}
		if moved.RowsAffected() != 1 {
			return fmt.Errorf("another process counts %s: its position is no longer %d", s.stream, s.seq)
		}
		sums := l.sums
		for _, size := range s.cells {
			sums = coarser(sums, size)
			if err := upsert(ctx, tx, totals.Table(size), l.names, sums); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.seq = l.seq
	s.committed.Add(l.hits)
	return nil
}

// coarser adds cells up to cells of another size.
func coarser(fine map[cell]int64, size time.Duration) map[cell]int64 {
	seconds := int64(size.Seconds())
	sums := make(map[cell]int64, len(fine))
	for c, n := range fine {
		sums[cell{c.counter, c.begins / seconds * seconds}] += n
	}
	return sums
}

func upsert(ctx context.Context, tx pgx.Tx, table string, names []string, sums map[cell]int64) error {
	cells := make([]cell, 0, len(sums))
	for c := range sums {
		cells = append(cells, c)
	}
	// In the order of the index: neighbours are on the same page.
	slices.SortFunc(cells, func(a, b cell) int {
		return cmp.Or(cmp.Compare(names[a.counter], names[b.counter]), cmp.Compare(a.begins, b.begins))
	})
	counters, moments, ns := make([]string, len(cells)), make([]time.Time, len(cells)), make([]int64, len(cells))
	for i, c := range cells {
		counters[i], moments[i], ns[i] = names[c.counter], time.Unix(c.begins, 0), sums[c]
	}
	_, err := tx.Exec(ctx, "INSERT INTO "+table+" AS c (counter, at, n)"+
		" SELECT * FROM unnest($1::text[], $2::timestamptz[], $3::bigint[])"+
		" ON CONFLICT (counter, at) DO UPDATE SET n = c.n + excluded.n", counters, moments, ns)
	return err
}

func (s *store) total(ctx context.Context, cell time.Duration, counter string, after time.Time) (sum int64, err error) {
	sql := "SELECT coalesce(sum(n), 0)::bigint FROM " + totals.Table(cell) + " WHERE counter = $1 AND at > $2"
	err = s.db.QueryRow(ctx, sql, counter, after).Scan(&sum)
	return sum, err
}
