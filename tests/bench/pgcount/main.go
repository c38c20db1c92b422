// Pgcount counts the hits of a JetStream stream in PostgreSQL, as a developer who knows both well would write
// it.
//
// It adds the hits of many messages up in memory. One transaction then adds the cells to their tables and
// moves the position in the stream, so every stored hit counts exactly once. It deletes no cells: a table
// that is partitioned by time drops them at next to no cost.
//
//	reader ──▶ load that fills ──▶ load that is written ──▶ PostgreSQL ◀── totals over HTTP
//
// It has a module of its own, so that the driver is no dependency of Tallyroll.
package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-faster/jx"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/tests/bench/pgcount/totals"
)

func main() { totals.Main(run) }

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
	mux := http.NewServeMux()
	mux.HandleFunc("GET /committed", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, s.committed.Load()) })
	totals.Handle(mux, cells, s.total)
	ended := make(chan error, 2)
	go func() { ended <- http.ListenAndServe(os.Getenv("ADDR"), mux) }()
	go func() { ended <- count(ctx, js, s) }()
	return <-ended
}

// flushInterval is the least time between the beginnings of two transactions. A load grows while the one
// before it is being written.
const flushInterval = 250 * time.Millisecond

// count reads the stream from behind the position in the database.
func count(ctx context.Context, js jetstream.JetStream, s *store) error {
	consumer, err := js.OrderedConsumer(ctx, s.stream, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: s.seq + 1, InactiveThreshold: 30 * time.Second,
	})
	if err != nil {
		return err
	}
	b := newBuffer(s.cells[0])
	failed := make(chan error, 1)
	reading, err := consumer.Consume(func(m jetstream.Msg) {
		if err := b.add(m); err != nil {
			select {
			case failed <- err:
			default: // one is enough
			}
		}
	}, jetstream.PullMaxMessages(10_000))
	if err != nil {
		return err
	}
	defer reading.Stop()
	flush := time.NewTicker(flushInterval)
	defer flush.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-failed:
			return err
		case <-flush.C:
			if l := b.take(); l.hits > 0 {
				if err := s.write(ctx, l); err != nil {
					return err
				}
			}
		}
	}
}

// maxCells bounds a load's memory.
const maxCells = 500_000

// cell is a counter's finest cell. The counter is its index in the load's names.
type cell struct {
	counter int
	begins  int64 // Unix seconds
}

// load is what one transaction writes.
type load struct {
	names []string
	index map[string]int
	sums  map[cell]int64
	hits  int64
	seq   uint64 // of its last message
}

func newLoad() *load {
	return &load{index: map[string]int{}, sums: map[cell]int64{}}
}

func (l *load) add(counter []byte, begins, n int64) {
	i, known := l.index[string(counter)]
	if !known {
		i = len(l.names)
		l.names = append(l.names, string(counter))
		l.index[l.names[i]] = i
	}
	l.sums[cell{i, begins}] += n
	l.hits += n
}

// buffer is the load that fills.
type buffer struct {
	finest int64 // seconds of a cell

	mu   sync.Mutex
	room *sync.Cond
	load *load
}

func newBuffer(finest time.Duration) *buffer {
	b := &buffer{finest: int64(finest.Seconds()), load: newLoad()}
	b.room = sync.NewCond(&b.mu)
	return b
}

// take returns the load and begins another one.
func (b *buffer) take() *load {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.load
	b.load = newLoad()
	b.room.Signal()
	return l
}

// add puts the hits of a message into the load, and waits for room while it is full. An empty body is a hit
// of the counter that the subject names after its first dot. Otherwise each line is a JSON object.
func (b *buffer) add(m jetstream.Msg) error {
	meta, err := m.Metadata()
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.load.sums) >= maxCells {
		b.room.Wait()
	}
	begins := meta.Timestamp.Unix() / b.finest * b.finest
	b.load.seq = meta.Sequence.Stream
	_, subject, _ := strings.Cut(m.Subject(), ".")
	if len(m.Data()) == 0 {
		b.load.add([]byte(subject), begins, 1)
		return nil
	}
	for line := range bytes.Lines(m.Data()) {
		counter, n := []byte(subject), int64(1)
		err := jx.DecodeBytes(line).ObjBytes(func(d *jx.Decoder, key []byte) (err error) {
			switch string(key) {
			case "key":
				counter, err = d.StrBytes()
			case "n":
				n, err = d.Int64()
			default:
				err = d.Skip()
			}
			return err
		})
		if err != nil {
			return err
		}
		b.load.add(counter, begins, n)
	}
	return nil
}
