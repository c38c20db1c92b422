package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"time"

	"github.com/cespare/xxhash/v2"

	"tallyroll/internal/hit"
)

// distinctNames counts an input's names, each a counter in Redis. It keeps a 64-bit hash of each.
type distinctNames struct {
	seen  map[uint64]struct{}
	limit int64 // 0: no limit
}

// errNames means that the input has more names than --max-names.
type errNames struct {
	limit int64
	name  string
}

func (e errNames) Error() string {
	return fmt.Sprintf("%q would be distinct name %s, and each is a counter in Redis", e.name, count(e.limit+1))
}

func (d *distinctNames) add(name []byte) error {
	hash := xxhash.Sum64(name)
	if _, ok := d.seen[hash]; ok {
		return nil
	}
	if d.limit > 0 && int64(len(d.seen)) >= d.limit {
		return errNames{limit: d.limit, name: string(name)}
	}
	if d.seen == nil {
		d.seen = map[uint64]struct{}{}
	}
	d.seen[hash] = struct{}{}
	return nil
}

// feeder moves hits from a source into the batcher until ctx ends, on one goroutine, except for the reading
// itself.
type feeder struct {
	ctx   context.Context
	batch *batcher
	pacer *pacer        // nil: as fast as the stream acknowledges
	first func(hit.Hit) // optional hook, called with the first hit that has a time; then nil
	timer *time.Timer

	bad   badLines
	names distinctNames
	skip  *regexp.Regexp // nil: no name is skipped
	holds bool           // hits are kept until the input ends
}

func newFeeder(ctx context.Context, batch *batcher, speed float64) *feeder {
	f := &feeder{ctx: ctx, batch: batch, timer: time.NewTimer(time.Hour)}
	f.timer.Stop()
	if speed > 0 {
		f.pacer = &pacer{speed: speed, wait: f.wait}
	}
	return f
}

func (f *feeder) feed(h hit.Hit) error {
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

// lines reads in to its end and passes each hit to feed. It submits a due batch while the input pauses, so
// that hits from `tail -f` are timely.
func (f *feeder) lines(in io.Reader, parse func([]byte) (hit.Hit, error), feed func(hit.Hit) error) error {
	cutter := &lineCutter{each: func(number int64, line []byte, long bool) error {
		var h hit.Hit
		var err error
		if number == 1 {
			line = hit.TrimMark(line)
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
		if f.skip != nil && f.skip.Match(h.Counter) {
			return nil
		}
		var many errNames
		if err := f.names.add(h.Counter); errors.As(err, &many) {
			where := fmt.Sprintf("from there (tail -n +%d)", number)
			if f.holds {
				where = "from the beginning (nothing is published yet)"
			}
			return fmt.Errorf("stopped before line %d: %w: choose a --key with fewer values, or go on %s with "+
				"--max-names %d", number, many, where, 2*many.limit)
		}
		return feed(h)
	}}
	// A read from a terminal or a pipe cannot be interrupted, so the reading goroutine is not waited for:
	// when ctx ends, it leaves after its last read.
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
