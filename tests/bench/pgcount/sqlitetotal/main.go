// Sqlitetotal answers totals from a table of cells in SQLite, as a developer who knows it well would write
// it: one file, in write-ahead mode, and a prepared statement per size of cells.
//
// It counts nothing. At start it writes a day of hits for each counter.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"time"

	_ "github.com/mattn/go-sqlite3"

	"tallyroll/tests/bench/pgcount/totals"
)

func main() { totals.Main(run) }

// A hundred hits per second of a day for each counter.
const write = `
CREATE TABLE %[1]s (counter TEXT, at INTEGER, n INTEGER NOT NULL, PRIMARY KEY (counter, at)) WITHOUT ROWID;
WITH RECURSIVE
	counters(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM counters WHERE i < %[3]d - 1),
	cells(back) AS (SELECT 0 UNION ALL SELECT back + 1 FROM cells WHERE back < 86400 / %[2]d - 1)
INSERT INTO %[1]s SELECT 'api-' || i, (unixepoch() / %[2]d - back) * %[2]d, 100 * %[2]d
	FROM counters, cells ORDER BY i, back DESC`

// run serves until ctx ends. Its settings are FILE, which it makes, ADDR, and COUNTERS: how many have hits.
func run(ctx context.Context) error {
	counters, err := strconv.Atoi(os.Getenv("COUNTERS"))
	if err != nil {
		return fmt.Errorf("COUNTERS: %w", err)
	}
	options := "?_journal_mode=WAL&_synchronous=NORMAL&_busy_timeout=5000&_cache_size=-65536"
	db, err := sql.Open("sqlite3", "file:"+os.Getenv("FILE")+options)
	if err != nil {
		return err
	}
	defer db.Close()
	cells, statements := []time.Duration{time.Minute, 15 * time.Minute}, map[time.Duration]*sql.Stmt{}
	for _, cell := range cells {
		table := totals.Table(cell)
		if _, err := db.ExecContext(ctx, fmt.Sprintf(write, table, int64(cell.Seconds()), counters)); err != nil {
			return err
		}
		sum := "SELECT coalesce(sum(n), 0) FROM " + table + " WHERE counter = ? AND at > ?"
		if statements[cell], err = db.PrepareContext(ctx, sum); err != nil {
			return err
		}
	}
	if _, err := db.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE); ANALYZE"); err != nil {
		return err
	}
	mux := http.NewServeMux()
	total := func(ctx context.Context, cell time.Duration, counter string, after time.Time) (sum int64, err error) {
		err = statements[cell].QueryRowContext(ctx, counter, after.Unix()).Scan(&sum)
		return sum, err
	}
	totals.Handle(mux, cells, total)
	ended := make(chan error, 1)
	go func() { ended <- http.ListenAndServe(os.Getenv("ADDR"), mux) }()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-ended:
		return err
	}
}
