package consume

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A stream that nobody has listed yet holds nothing back: the others' as_of would
// claim its first hits. So a worker hears of new streams from the server's
// advisories, lists them in Redis before anything else, and moves no as_of before
// it has listed every stream that it was told of until then.

const (
	streamCreated = "$JS.EVENT.ADVISORY.STREAM.CREATED."
	streamDeleted = "$JS.EVENT.ADVISORY.STREAM.DELETED."
	// newsWithin bounds the way of a worker's message to itself. Without it as_of stands still.
	newsWithin = time.Second
	// newsWaiting is how many advisories may wait to be read; further ones are lost.
	newsWaiting = 8192
)

// news is what a worker hears of streams. Its own messages come on the channel of
// the advisories, so one that comes back comes after all that the server had sent before it.
type news struct {
	conn   *nats.Conn
	heard  chan *nats.Msg
	inbox  string // of the worker's own messages
	subs   []*nats.Subscription
	failed atomic.Uint64 // streams that could not be listed
	listed atomic.Uint64 // epoch at the beginning of the last listing that succeeded, plus 1

	mu      sync.Mutex
	sent    uint64
	waiting map[string]chan struct{} // by the last token of the subject
}

// epoch changes when something may not have been heard or listed: only a listing of all streams makes up for it.
func (n *news) epoch() uint64 { return n.conn.Stats().Reconnects + n.failed.Load() }

// hear subscribes to the advisories. A user without the right to them goes on
// without: new streams are then found by listing alone.
func (w *worker) hear() error {
	conn := w.js.Conn()
	n := &news{
		conn: conn, heard: make(chan *nats.Msg, newsWaiting), inbox: conn.NewInbox() + ".",
		waiting: make(map[string]chan struct{}),
	}
	for _, subject := range []string{streamCreated + "*", streamDeleted + "*", n.inbox + "*"} {
		sub, err := conn.ChanSubscribe(subject, n.heard)
		if err != nil {
			return fmt.Errorf("subscribe to %s: %w", subject, err)
		}
		n.subs = append(n.subs, sub)
	}
	if err := conn.FlushTimeout(newsWithin); err != nil && !errors.Is(err, nats.ErrTimeout) {
		w.log.Debug().Err(err).Msg("the subscriptions to advisories are not confirmed")
	}
	// A refusal comes before the answer to the flush.
	if err := conn.LastError(); errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), "$JS.EVENT.ADVISORY.STREAM.") {
		w.log.Warn().Msgf("this user may not subscribe to %s*: new streams are found within %s, and until then as_of may claim their first hits; grant that right to find them at once", streamCreated, discoverEvery)
		n.unsubscribe()
		return nil
	}
	w.news = n
	return nil
}

func (n *news) unsubscribe() {
	for _, sub := range n.subs {
		_ = sub.Unsubscribe() // its only error is that the connection is closed
	}
}

// followNews lists streams as it hears of them, until ctx ends.
func (w *worker) followNews(ctx context.Context) {
	defer w.news.unsubscribe()
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-w.news.heard:
			w.hearOf(ctx, m.Subject)
		}
	}
}

func (w *worker) hearOf(ctx context.Context, subject string) {
	n := w.news
	if token, own := strings.CutPrefix(subject, n.inbox); own {
		n.mu.Lock()
		defer n.mu.Unlock()
		if back := n.waiting[token]; back != nil {
			close(back)
			delete(n.waiting, token)
		}
		return
	}
	name, created := strings.CutPrefix(subject, streamCreated)
	if !created {
		name = strings.TrimPrefix(subject, streamDeleted)
	}
	if !w.fleet.matters(name) {
		return
	}
	if created {
		if err := w.enter(ctx, name); err != nil && ctx.Err() == nil {
			n.failed.Add(1)
			w.log.Warn().Err(err).Str("stream", name).Msg("a new stream is not listed yet: as_of stands still until it is")
		}
	}
	signal(w.look)
}

// enter lists a stream as live, with the moment before which it has stored nothing.
// The server tells of a new stream some microseconds before it knows it.
func (w *worker) enter(ctx context.Context, name string) error {
	const tries, pause = 5, 5 * time.Millisecond
	for try := 1; ; try++ {
		asking, cancel := context.WithTimeout(ctx, lookWithin)
		handle, err := w.js.Stream(asking, name)
		cancel()
		switch {
		case err == nil:
			return w.store.AddStreamSince(ctx, name, sinceOf(handle.CachedInfo()))
		case !errors.Is(err, jetstream.ErrStreamNotFound) && !w.settings.Streams.match(name):
			return w.store.AddUnknownStream(ctx, name) // another worker's, which this one need not have a right to
		case !errors.Is(err, jetstream.ErrStreamNotFound):
			return fmt.Errorf("look at the new stream %s: %w", name, err)
		case try == tries:
			return nil // it is gone again; if not, the next listing has it
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// upToDate reports whether every stream that was made before this call is listed in
// Redis, as far as the server has told of it: an own message overtakes no advisory.
func (w *worker) upToDate(ctx context.Context) bool {
	n := w.news
	if n == nil {
		return true // see hear
	}
	if !n.conn.IsConnected() {
		return false
	}
	back := make(chan struct{})
	n.mu.Lock()
	n.sent++
	token := strconv.FormatUint(n.sent, 10)
	n.waiting[token] = back
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		delete(n.waiting, token)
		n.mu.Unlock()
	}()
	ctx, cancel := context.WithTimeout(ctx, newsWithin)
	defer cancel()
	if n.conn.Publish(n.inbox+token, nil) != nil {
		return false
	}
	select {
	case <-back:
		return n.listed.Load() == n.epoch()+1
	case <-ctx.Done():
		return false
	}
}

// enlist lists in Redis what it does not list as live: streams of which no
// advisory came, and all of them after a loss.
func (w *worker) enlist(ctx context.Context, all []string) error {
	listed, err := w.store.Streams(ctx)
	if err != nil {
		return err
	}
	for _, name := range all {
		if l, known := listed[name]; (!known || l.Ended > 0) && w.fleet.matters(name) {
			if err := w.enter(ctx, name); err != nil {
				return err
			}
		}
	}
	return nil
}
