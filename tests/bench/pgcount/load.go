package main

import (
	"bytes"
	"strings"
	"sync"
	"time"

	"github.com/go-faster/jx"
	"github.com/nats-io/nats.go/jetstream"
)

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

// add puts the hits of a message into the load, and waits for room while it is full. An empty body is a hit of
// the counter that the subject names after its first dot. Otherwise each line is a JSON object.
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
