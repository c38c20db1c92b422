package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"tallyroll/internal/hit"
)

// badLines counts the lines that are not hits.
type badLines struct {
	count  int64
	first  int64 // its line number; 0 if that is not known any more
	reason error // why the first one is bad
}

func (b *badLines) add(count, number int64, reason error) {
	if b.count == 0 {
		b.first, b.reason = number, reason
	}
	b.count += count
}

// feeder moves hits from a source into the batcher. Everything but the
// reading itself happens on one goroutine. When ctx ends, it stops reading.
type feeder struct {
	ctx   context.Context
	batch *batcher
	pacer *pacer        // nil: as fast as the stream acknowledges
	first func(hit.Hit) // is given the first hit that has a time, before it goes; then nil
	timer *time.Timer

	bad badLines
}

func newFeeder(ctx context.Context, batch *batcher, speed float64) *feeder {
	f := &feeder{ctx: ctx, batch: batch, timer: time.NewTimer(time.Hour)}
	f.timer.Stop()
	if speed > 0 {
		f.pacer = &pacer{speed: speed, wait: f.wait}
	}
	return f
}

// take publishes a hit when it is its turn.
func (f *feeder) take(h hit.Hit) error {
	if f.first != nil && h.At != hit.NoTime {
		f.first(h)
		f.first = nil
	}
	if f.pacer != nil {
		if err := f.pacer.pace(h); err != nil {
			return err
		}
	}
	if err := f.batch.add(h); err != nil {
		return err
	}
	if f.batch.msg == nil {
		return f.ctx.Err() // once a message: for each hit it would cost as much as the parser
	}
	return nil
}

// wait waits, and meanwhile submits the batch when it is due.
func (f *feeder) wait(until time.Time) error {
	for {
		now := time.Now()
		left := until.Sub(now)
		if left <= 0 {
			return f.ctx.Err()
		}
		if due, ok := f.batch.due(); ok {
			left = min(left, due.Sub(now))
		}
		if left <= 0 {
			if err := f.batch.flush(); err != nil {
				return err
			}
			continue
		}
		f.timer.Reset(left)
		select {
		case <-f.timer.C:
		case <-f.ctx.Done():
			return f.ctx.Err()
		}
	}
}

type chunk struct {
	bytes []byte
	err   error
}

const chunkSize = 256 << 10

// byteOrderMark is what some editors begin a UTF-8 file with.
var byteOrderMark = []byte("\ufeff")

// lines reads in to its end and hands each hit to take. A batch that is due
// is submitted while the input pauses, so that hits from `tail -f` are timely.
func (f *feeder) lines(in io.Reader, parse func([]byte) (hit.Hit, error), take func(hit.Hit) error) error {
	cutter := &lineCutter{each: func(number int64, line []byte, long bool) error {
		var h hit.Hit
		var err error
		if number == 1 {
			line = bytes.TrimPrefix(line, byteOrderMark)
		}
		switch {
		case long:
			err = errLongLine
		case hit.Blank(line):
			return nil // holds nothing that could be lost
		default:
			h, err = parse(line)
		}
		if err != nil {
			f.bad.add(1, number, err)
			return nil
		}
		return take(h)
	}}
	// A read from a terminal or a pipe cannot be interrupted, so nobody waits
	// for the reading goroutine: when ctx ends it leaves after its last read.
	ctx, stop := context.WithCancel(f.ctx)
	defer stop()
	chunks := make(chan chunk)
	spare := make(chan []byte, 2) // one is read into while the other is parsed
	spare <- make([]byte, chunkSize)
	spare <- make([]byte, chunkSize)
	go readChunks(ctx, in, spare, chunks)
	for {
		c, err := f.next(chunks)
		if err != nil {
			return err
		}
		if err := cutter.cut(c.bytes); err != nil {
			return err
		}
		switch {
		case errors.Is(c.err, io.EOF):
			return cutter.finish()
		case c.err != nil:
			return fmt.Errorf("read standard input after line %d: %w", cutter.number, c.err)
		}
		spare <- c.bytes[:chunkSize]
	}
}

// next waits for a chunk, and meanwhile submits the batch when it is due.
func (f *feeder) next(chunks <-chan chunk) (chunk, error) {
	for {
		var due <-chan time.Time
		if t, ok := f.batch.due(); ok {
			f.timer.Reset(time.Until(t))
			due = f.timer.C
		}
		select {
		case <-f.ctx.Done():
			return chunk{}, f.ctx.Err()
		case c := <-chunks:
			return c, nil
		case <-due:
			if err := f.batch.flush(); err != nil {
				return chunk{}, err
			}
		}
	}
}

func readChunks(ctx context.Context, in io.Reader, spare <-chan []byte, chunks chan<- chunk) {
	for {
		var c chunk
		select {
		case c.bytes = <-spare:
		case <-ctx.Done():
			return
		}
		n, err := in.Read(c.bytes)
		c.bytes, c.err = c.bytes[:n], err
		select {
		case chunks <- c:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}
