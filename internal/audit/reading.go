package audit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"tallyroll/internal/consume"
	"tallyroll/internal/consume/source"
	"tallyroll/internal/platform/progress"
	"tallyroll/internal/platform/wait"
)

const (
	// stillAfter is the silence after which the stream is asked whether there is more to read.
	stillAfter = 300 * time.Millisecond
	// maxFailures bounds the failures in a row without a message.
	maxFailures = 20
	shownEvery  = 500
)

var errGap = errors.New("messages were lost on the way")

// reading subtracts a stream's messages, up to the cursors, from a ledger.
type reading struct {
	stream    *stream
	index     int // of the stream
	ledger    *ledger
	report    *report
	recount   *consume.Recount
	pace      pace
	bar       *progress.Bar
	log       zerolog.Logger
	to        uint64                 // the last message that any cursor shows as applied
	cursorKey func(shard int) string // of the stream's cursor

	mu       sync.Mutex
	at       uint64 // the last message that was read
	expected uint64 // number of the next delivery
	ended    bool   // nothing more is read
	newest   int64  // when the latest message up to at was stored, Unix nanoseconds
	complete int64  // Unix milliseconds: what is missing was stored up to this moment
	shown    int

	finished chan struct{}
}

// subtract returns what auditor.read does.
func (r *reading) subtract(ctx context.Context) (complete int64, err error) {
	for seq, named := range r.stream.marks {
		if last := r.stream.state.Last; seq > last {
			r.report.cursorDiffers(r.cursorKey(named[0].shard), "at message %d, and the stream ends with %d", seq, last)
		}
	}
	if err := r.run(ctx); err != nil {
		return 0, err
	}
	r.bar.Add(r.shown)
	// Of messages after the last one held, or before one with an earlier time, only the time is known.
	if r.at < r.to || r.stream.latest > r.newest {
		r.report.missing(r.stream.name, "does not hold all messages up to its cursors")
		return max(r.complete, r.stream.latest/1e6), nil
	}
	return r.complete, nil
}

func (r *reading) run(ctx context.Context) error {
	for failures := 0; ; failures++ {
		before := r.at
		err := r.session(ctx)
		switch {
		case err == nil, ctx.Err() != nil, errors.Is(err, errUnjudged), errors.Is(err, source.ErrNoStream):
			return err
		case r.at > before:
			failures = 0
		case failures >= maxFailures:
			return err
		}
		r.log.Warn().Err(err).Uint64("from", r.at+1).Msg("reading again")
		if err := wait.Sleep(ctx, retryAfter); err != nil {
			return err
		}
		if err := r.confirm(ctx); err != nil {
			return err
		}
	}
}

// confirm checks that the stream is still the same.
func (r *reading) confirm(ctx context.Context) error {
	now, err := source.Confirmed(ctx, r.stream.source)
	before := r.stream.state
	isOther := err == nil && (now.Created != before.Created || now.Last < before.Last)
	if isOther || errors.Is(err, source.ErrNoStream) {
		return fmt.Errorf("%w: stream %s was recreated, deleted or rolled back meanwhile: run again", errUnjudged,
			r.stream.name)
	}
	return nil // if it does not answer, the next session fails
}

func (r *reading) session(ctx context.Context) error {
	feed, err := r.stream.source.Open(ctx, r.at+1)
	if err != nil {
		return err
	}
	defer func() { _ = feed.Release() }() // if that fails, the server removes it later
	lost := make(chan error, 2)
	r.expected = 1
	reading, stop := context.WithCancel(ctx)
	defer stop()
	if err := feed.Start(func(d source.Delivery) {
		r.deliver(reading, d, lost)
	}, func(err error) { lost <- err }); err != nil {
		return err
	}
	defer func() {
		stop() // a delivery that waits for the pace
		feed.Stop()
		r.mu.Lock() // a delivery may be under way
		defer r.mu.Unlock()
	}()
	ticker := time.NewTicker(stillAfter)
	defer ticker.Stop()
	last := uint64(0)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-lost:
			return err
		case <-r.finished:
			return nil
		case <-ticker.C:
		}
		at := r.position()
		if at == last {
			if over, err := r.isOver(ctx, at); err != nil || over {
				return err
			}
		}
		last = at
	}
}

func (r *reading) position() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.at
}

func (r *reading) isOver(ctx context.Context, at uint64) (bool, error) {
	next, _, err := r.stream.source.Next(ctx, at+1)
	if err != nil || next > 0 && next <= r.to {
		return false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.at == at {
		r.ended = true
	}
	return r.ended, nil
}

func (r *reading) deliver(ctx context.Context, d source.Delivery, lost chan<- error) {
	r.pace.wait(ctx, 1)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended || ctx.Err() != nil {
		return
	}
	if d.Nth != r.expected || d.Seq <= r.at {
		select {
		case lost <- fmt.Errorf("%w: delivery %d (message %d) of %s came instead of %d", errGap, d.Nth, d.Seq,
			r.stream.name, r.expected):
		default:
		}
		return
	}
	r.expected++
	if d.Seq <= r.to {
		r.count(d)
	}
	if d.Seq >= r.to {
		r.ended = true
		close(r.finished)
	}
}

// count subtracts the hits of a message from the ledger. The caller holds mu.
func (r *reading) count(d source.Delivery) {
	r.newest = max(r.newest, d.Stored)
	if d.Seq != r.at+1 {
		r.complete = max(r.complete, r.newest/1e6)
		why := "does not hold messages between those that it holds"
		if r.at == r.stream.state.BeforeFirst() {
			why = "begins with message " + fmt.Sprint(d.Seq) + ", stored at " + moment(d.Stored)
		}
		r.report.missing(r.stream.name, why)
	}
	r.at = d.Seq
	for _, named := range r.stream.marks[d.Seq] {
		if named.stored != d.Stored {
			r.report.cursorDiffers(r.cursorKey(named.shard), "it names message %d as stored at %s, and the stream "+
				"stored that at %s", d.Seq, moment(named.stored), moment(d.Stored))
		}
	}
	hits, _, known := r.recount.Read(d)
	if !known {
		r.complete = max(r.complete, d.Stored/1e6)
		r.report.lost(r.stream.name, d.Seq)
	}
	for i := range hits {
		r.ledger.subtract(r.index, d.Seq, d.Stored/1e6, &hits[i])
	}
	r.ledger.shorten()
	if r.shown++; r.shown == shownEvery {
		r.shown = 0
		r.bar.Add(shownEvery)
	}
}
