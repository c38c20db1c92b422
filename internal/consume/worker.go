package consume

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"tallyroll/internal/fleet"
	"tallyroll/internal/rejects"
	"tallyroll/internal/wake"
	"tallyroll/internal/window"
)

// worker reads its share of the streams that match, each in sessions of its own.
type worker struct {
	settings Settings
	layout   window.Layout
	js       jetstream.JetStream
	store    *window.Store
	metrics  *metrics
	log      zerolog.Logger
	progress Progress
	outage   *outage
	waits    *waits
	clocks   *clocks
	fleet    *fleet.Fleet
	look     wake.Signal // the worker should look for streams at once
	census   census
	claims   claims
	rules    *rulebook // nil: INGEST_RULES is not set
	unnamed  []string  // see sweep

	running sync.WaitGroup
	mu      sync.Mutex
	open    map[string]*held // by stream
	absent  map[string]bool  // streams that a session has found gone, until they are listed again
	streams int              // in its share; also 0 before the share is known
	settled bool             // its share is known
	// idleRules says of each rule that counts nothing where it is and why.
	idleRules []string

	// Only run's goroutine uses these.
	known   []string        // all streams that exist; nil before the first look
	counted map[string]bool // streams that may have series of metrics
	probed  struct {        // see probe
		streams string // that were read at the last probe
		at      time.Time
		bad     atomic.Bool // any goroutine uses it
	}
	connects  uint64             // how often NATS had been reconnected when the own streams were last there
	bareSince time.Time          // since when they have been missing after a reconnection
	missing   map[string]absence // streams that are no longer listed, with the first look that missed them
	shareIs   string             // what the log last said about the share
}

// held is a stream that this worker reads, or is about to let go.
type held struct {
	stop  context.CancelFunc
	phase atomic.Int32 // of its session
}

// run finds streams and reads its share of them until ctx ends and every session
// has committed what it had.
func (w *worker) run(ctx context.Context) error {
	stopHearing, err := w.hear()
	if err != nil {
		return err
	}
	defer stopHearing()
	if err := awaitLeader(ctx, w.log, w.discover); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return w.settings.refused(err) // at start: say what is wrong instead of waiting silently
	}
	// The fleet's context outlives ctx: a worker stays in the fleet until its last commit.
	inFleet, leave := context.WithCancel(context.WithoutCancel(ctx))
	left := make(chan struct{})
	go func() {
		defer close(left)
		w.fleet.Run(inFleet)
	}()

	w.running.Go(func() { w.claims.run(ctx, w.store, w.upToDate, w.log) })
	if w.rules != nil {
		w.running.Go(func() { w.keepSwept(ctx) })
	}
	ticker := time.NewTicker(discoverEvery)
	defer ticker.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-ticker.C:
			w.look.Give()
		case <-w.look:
			if err := w.discover(ctx); err != nil && ctx.Err() == nil {
				w.log.Warn().Err(err).Msg("streams could not be listed")
			}
		case <-w.fleet.Changed():
		}
		if ctx.Err() == nil {
			w.follow(ctx, w.fleet.Share())
		}
	}
	w.log.Info().Msg("stopping: committing what is in memory")
	w.fleet.Leaving()
	w.running.Wait()
	leave()
	<-left
	return nil
}

// follow begins to read the streams that have become this worker's, and lets go of those that
// have become another's. If the share is not known, it changes nothing.
func (w *worker) follow(ctx context.Context, s fleet.Share) {
	if !s.Known {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.streams = len(s.Mine)
	for name, h := range w.open {
		if !s.Mine[name] {
			h.stop() // the session commits, and the stream is released when it ends
		}
	}
	for name := range s.Mine {
		if w.open[name] == nil && !s.Busy[name] && !w.absent[name] {
			w.hold(ctx, name)
		}
	}
	w.settled = true
	w.metrics.fleetWorkers.Set(float64(s.Workers))
	if is := fmt.Sprint(s.Workers, s.Streams, slices.Sorted(maps.Keys(s.Mine))); is != w.shareIs {
		w.shareIs = is
		line := w.log.Info().Int("workers", s.Workers).Int("of", s.Streams).Strs("streams", slices.Sorted(maps.Keys(s.Mine)))
		if len(s.Mine) == 0 {
			line.Msg("no stream is this worker's: standing by")
		} else {
			line.Msg("this worker's streams")
		}
	}
}

// hold starts the sessions of a stream. The caller holds mu.
func (w *worker) hold(working context.Context, name string) {
	ctx, stop := context.WithCancel(working)
	h := &held{stop: stop}
	w.open[name] = h
	w.counted[name] = true
	w.metrics.held.Set(float64(len(w.open)))
	w.fleet.Hold(name)
	w.running.Go(func() {
		defer stop()
		gone, lost := w.keep(ctx, name, func(p phase) { h.phase.Store(int32(p)) }, func() source {
			s := newJetStreamSource(w.js, w.settings.Redis.Namespace, name, w.pullBytes())
			s.remake = w.ensureRejected
			s.unsure = w.sayUnsure(name)
			return s
		})
		if lost {
			w.admitLoss(working, name) // even if the fleet has let go of the stream in the meantime
		}
		w.mu.Lock()
		delete(w.open, name)
		if gone {
			w.absent[name] = true
		}
		w.metrics.held.Set(float64(len(w.open)))
		w.mu.Unlock()
		w.fleet.Release(name)
	})
}

// ensureRejected makes the stream of rejects if it is missing.
func (w *worker) ensureRejected(ctx context.Context) error {
	return rejects.Create(ctx, w.js, w.settings.Replicas, w.settings.MaxAge)
}

// holding returns the streams that the worker has not let go.
func (w *worker) holding() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.open))
}

// idle says which rules count nothing.
func (w *worker) idle() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.idleRules
}

// unready says why this worker does not do its share of the work. It is empty if the worker does, or
// if it stands by.
func (w *worker) unready() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !w.settled:
		return "this worker does not know its share of the streams yet"
	case w.js.Conn().Status() != nats.CONNECTED:
		return "NATS does not answer"
	}
	for _, name := range slices.Sorted(maps.Keys(w.open)) {
		if phase(w.open[name].phase.Load()) >= counting {
			continue
		}
		if why := w.waits.why(name); why != nil {
			return fmt.Sprintf("stream %s is not being read: %v", name, why)
		}
		return fmt.Sprintf("stream %s is not being read yet", name)
	}
	return w.waits.lasting()
}
