// Pgcount counts the hits of a JetStream stream in PostgreSQL, as somebody would write it who knows both well.
//
// It adds the hits of many messages up in memory. One transaction then adds the cells to their tables and moves
// the position in the stream, so every stored hit counts exactly once. It deletes no cells: a table that is
// partitioned by time drops them at next to no cost.
//
//	reader ──▶ load that fills ──▶ load that is written ──▶ PostgreSQL ◀── totals over HTTP
//
// It has a module of its own, so that the driver is no dependency of Tallyroll.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run counts until ctx ends. Its settings are NATS_URL, DATABASE_URL, STREAM, ADDR, and CELLS: the sizes of
// cells, finest first, each a multiple of the one before.
func run(ctx context.Context) error {
	var cells []time.Duration
	for text := range strings.SplitSeq(os.Getenv("CELLS"), ",") {
		d, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("CELLS: %w", err)
		}
		cells = append(cells, d)
	}
	db, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer db.Close()
	s := &store{db: db, stream: os.Getenv("STREAM"), cells: cells}
	if err := s.prepare(ctx); err != nil {
		return err
	}
	conn, err := nats.Connect(os.Getenv("NATS_URL"))
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	ended := make(chan error, 2)
	go func() { ended <- http.ListenAndServe(os.Getenv("ADDR"), s.handler()) }()
	go func() { ended <- count(ctx, js, s) }()
	return <-ended
}
