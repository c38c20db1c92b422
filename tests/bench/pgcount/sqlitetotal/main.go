// Sqlitetotal answers totals from a table of cells in SQLite, as somebody would write it who knows it well: one
// file, in write-ahead mode, and a prepared statement per size of cells.
//
// It counts nothing. At start it writes a day of hits for each counter.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	_ "github.com/mattn/go-sqlite3"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run serves until ctx ends. Its settings are FILE, which it makes, ADDR, and COUNTERS: how many have hits.
func run(ctx context.Context) error {
	counters, err := strconv.Atoi(os.Getenv("COUNTERS"))
	if err != nil {
		return fmt.Errorf("COUNTERS: %w", err)
	}
	db, err := sql.Open("sqlite3", "file:"+os.Getenv("FILE")+"?_journal_mode=WAL&_synchronous=NORMAL&_busy_timeout=5000&_cache_size=-65536")
	if err != nil {
		return err
	}
	defer db.Close()
	statements := map[string]*sql.Stmt{}
	for _, cell := range []time.Duration{time.Minute, 15 * time.Minute} {
		if err := fill(ctx, db, cell, counters); err != nil {
			return err
		}
		statements[cell.String()], err = db.PrepareContext(ctx, "SELECT coalesce(sum(n), 0) FROM "+table(cell)+" WHERE counter = ? AND at > ?")
		if err != nil {
			return err
		}
	}
	if _, err := db.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE); ANALYZE"); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- http.ListenAndServe(os.Getenv("ADDR"), handler(statements)) }()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-ended:
		return err
	}
}

func table(cell time.Duration) string { return fmt.Sprintf("cells_%d", int64(cell.Seconds())) }

// fill makes a table with a hundred hits per second of a day for each counter.
func fill(ctx context.Context, db *sql.DB, cell time.Duration, counters int) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	name, seconds := table(cell), int64(cell.Seconds())
	if _, err := tx.ExecContext(ctx, "CREATE TABLE "+name+" (counter TEXT, at INTEGER, n INTEGER NOT NULL, PRIMARY KEY (counter, at)) WITHOUT ROWID"); err != nil {
		return err
	}
	insert, err := tx.PrepareContext(ctx, "INSERT INTO "+name+" VALUES (?, ?, ?)")
	if err != nil {
		return err
	}
	defer insert.Close()
	last := time.Now().Unix() / seconds * seconds
	for c := range counters {
		for back := int64(24*time.Hour/cell) - 1; back >= 0; back-- {
			if _, err := insert.ExecContext(ctx, fmt.Sprintf("api-%d", c), last-back*seconds, 100*seconds); err != nil {
				return err
			}
		}
	}
	return tx.Commit()
}

// handler answers GET /total?key=K&window=24h&cell=1m.
func handler(statements map[string]*sql.Stmt) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /total", func(w http.ResponseWriter, r *http.Request) {
		window, err := time.ParseDuration(r.FormValue("window"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		cell, err := time.ParseDuration(r.FormValue("cell"))
		statement := statements[cell.String()]
		if err != nil || statement == nil {
			http.Error(w, "cell: not one that is counted in", http.StatusBadRequest)
			return
		}
		var total int64
		if err := statement.QueryRowContext(r.Context(), r.FormValue("key"), time.Now().Add(-window).Unix()).Scan(&total); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"total":%d}`+"\n", total)
	})
	return mux
}
