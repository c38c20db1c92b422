// Package totals is what pgcount and sqlitetotal share: tables of cells, and totals over HTTP.
package totals

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

// Main runs a program until a signal ends its context.
func Main(run func(ctx context.Context) error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Table is the name of the table of cells of a size.
func Table(cell time.Duration) string { return fmt.Sprintf("cells_%d", int64(cell.Seconds())) }

// Total adds up a counter's cells that begin after a moment.
type Total func(ctx context.Context, cell time.Duration, counter string, after time.Time) (int64, error)

// Handle answers GET /total?key=K&window=24h&cell=1m.
func Handle(mux *http.ServeMux, cells []time.Duration, total Total) {
	mux.HandleFunc("GET /total", func(w http.ResponseWriter, r *http.Request) {
		window, err := time.ParseDuration(r.FormValue("window"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		cell, err := time.ParseDuration(r.FormValue("cell"))
		if err != nil || !slices.Contains(cells, cell) {
			http.Error(w, "cell: not one that is counted in", http.StatusBadRequest)
			return
		}
		sum, err := total(r.Context(), cell, r.FormValue("key"), time.Now().Add(-window))
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"total":%d}`+"\n", sum)
	})
}
