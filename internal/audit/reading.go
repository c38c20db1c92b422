package audit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"tallyroll/internal/consume"
	"tallyroll/internal/source"
)

const (
	// stillAfter is the silence after which the stream is asked whether there is more to read.
	stillAfter = 300 * time.Millisecond
	// maxFailures bounds the failures in a row without a message.
	maxFailures = 20
	retryAfter  = 500 * time.Millisecond
	shownEvery  = 500
)

var errGap = errors.New("messages were lost on the way")

type reading struct {
	*auditor
	stream  *stream
	index   int // of the stream
	ledger  *ledger
	recount *consume.Recount
	to      uint64 // the last message that any cursor says was applied

	mu       sync.Mutex
	at       uint64 // the last message that was read
	expected uint64 // number of the next delivery
	ended    bool   // nothing more is read
	newest   int64  // when the latest message up to at was stored, Unix nanoseconds
	complete int64  // Unix milliseconds: what is missing was stored up to this moment
	shown    int

	finished chan struct{}
}

// read subtracts a stream's messages up to the cursors from a ledger. It returns the moment (Unix ms) up to
// which messages were stored that the stream lacks, or 0.
func (a *auditor) read(ctx context.Context, index int, l *ledger) (complete int64, err error) {
	s := a.streams[index]
	to := l.upTo(index)
	for _, c := range s.cursors {
		to = max(to, c.Furthest())
	}
	switch {
	case to == 0:
		return 0, nil
	case s.ended:
		a.report.missing(s.name, "was deleted")
		return s.latest / 1e6, nil
	}
	a.checkEnd(s)
	recount, err := consume.NewRecount(ctx, a.store, a.layout, a.limits, s.name, s.state.Subjects, s.cursors)
	if err != nil {
		return 0, err
	}
	r := &reading{auditor: a, stream: s, index: index, ledger: l, recount: recount, to: to, finished: make(chan struct{})}
	if err := r.run(ctx); err != nil {
		return 0, err
	}
	a.bar.Add(r.shown)
	// Of messages after the last one held, or before one with an earlier time, only the time is known.
	if r.at < to || s.latest > r.newest {
		a.report.missing(s.name, "does not hold all messages up to its cursors")
		return max(r.complete, s.latest/1e6), nil
	}
	return r.complete, nil
}

func (a *auditor) checkEnd(s *stream) {
	for seq, named := range s.marks {
		if seq > s.state.Last {
			a.cursorDiffers(s, named[0].shard, "it is at message %d, and the stream ends with %d", seq, s.state.Last)
		}
	}
}

func (a *auditor) cursorDiffers(s *stream, shard int, format string, args ...any) {
	key := a.store.Keys.Cursor(shard, s.name)
	if a.said[key] {
		return
	}
	a.said[key] = true
	a.report.differ("cursor %s: %s: it was changed, or the stream was rolled back and no worker has seen it yet", key, fmt.Sprintf(format, args...))
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
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retryAfter):
		}
		if err := r.confirm(ctx); err != nil {
			return err
		}
	}
}

// confirm checks that the stream is still the same.
func (r *reading) confirm(ctx context.Context) error {
	now, err := source.Confirmed(ctx, r.stream.source)
	if errors.Is(err, source.ErrNoStream) || err == nil && (now.Created != r.stream.state.Created || now.Last < r.stream.state.Last) {
		return fmt.Errorf("%w: stream %s was recreated, deleted or rolled back meanwhile: run again", errUnjudged, r.stream.name)
	}
	return nil // if it does not answer, the next session fails
}

func (r *reading) session(ctx context.Context) error {
	feed, err := r.stream.source.Open(ctx, r.at+1)
	if err != nil {
		return err
	}
	defer func() { _ = feed.Release() }() // or the server forgets it
	lost := make(chan error, 2)
	r.expected = 1
	reading, stop := context.WithCancel(ctx)
	defer stop()
	if err := feed.Start(func(d source.Delivery) { r.deliver(reading, d, lost) }, func(err error) { lost <- err }); err != nil {
		return err
	}
	defer func() {
		stop() // a delivery that waits for its turn
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
		at := r.place()
		if at == last {
			if over, err := r.isOver(ctx, at); err != nil || over {
				return err
			}
		}
		last = at
	}
}

func (r *reading) place() uint64 {
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
	r.wait(ctx, 1)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended || ctx.Err() != nil {
		return
	}
	if d.Nth != r.expected || d.Seq <= r.at {
		select {
		case lost <- fmt.Errorf("%w: delivery %d (message %d) of %s came instead of %d", errGap, d.Nth, d.Seq, r.stream.name, r.expected):
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
		if r.at == 0 {
			why = "begins with message " + fmt.Sprint(d.Seq) + ", stored at " + moment(d.Stored)
		}
		r.report.missing(r.stream.name, why)
	}
	r.at = d.Seq
	for _, named := range r.stream.marks[d.Seq] {
		if named.stored != d.Stored {
			r.cursorDiffers(r.stream, named.shard, "it names message %d as stored at %s, and the stream stored that at %s", d.Seq, moment(named.stored), moment(d.Stored))
		}
	}
	hits, _, known := r.recount.Read(d)
	if !known {
		r.complete = max(r.complete, d.Stored/1e6)
		r.report.lost(r.stream.name, d.Seq)
	}
	for i := range hits {
		r.ledger.take(r.index, d.Seq, d.Stored/1e6, &hits[i])
	}
	r.ledger.shorten()
	if r.shown++; r.shown == shownEvery {
		r.shown = 0
		r.bar.Add(shownEvery)
	}
}
