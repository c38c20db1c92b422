package worker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"tallyroll/internal/consume"
	"tallyroll/internal/consume/fleet"
	"tallyroll/internal/consume/source"
	"tallyroll/internal/platform/wait"
	"tallyroll/internal/rules"
	"tallyroll/internal/window"
	"tallyroll/internal/window/schema"
)

// worker reads its share of the matching streams, each in sessions of its own.
type worker struct {
	settings    Settings
	log         zerolog.Logger
	progress    consume.Progress  // may be nil
	rules       *consume.Rulebook // nil: INGEST_RULES is not set
	metrics     *metrics
	status      *status
	discoverDue wait.Signal // a check for streams is due at once
	own         ownStreams

	// connectAndRun sets these.
	store  *schema.Store
	layout window.Layout

	// connect sets these.
	js          jetstream.JetStream
	fleet       *fleet.Fleet
	keeper      *consume.Keeper
	streamCheck streamCheck
	counted     countedStreams
	endings     endings
	probe       probe

	running sync.WaitGroup // the sessions, claims and the sweeper

	mu       sync.Mutex
	sessions map[string]context.CancelFunc // the streams that are read, or whose last commit is running
	absent   map[string]bool               // streams that a session has found gone, until they are listed again

	// Only readShare's goroutine uses these.
	known         []string        // all streams that exist; nil before the first check
	metricStreams map[string]bool // streams that may have series of metrics
	lastShare     string          // as logged last
}

func (w *worker) assemble(js jetstream.JetStream, f *fleet.Fleet) {
	w.js, w.fleet = js, f
	w.own.js = js
	w.counted = countedStreams{js: js, fleet: f, missing: make(map[string]time.Time)}
	copies := w.counted.copies()
	w.status.setCopies(copies)
	w.streamCheck = streamCheck{js: js, store: w.store, fleet: f, readable: w.readable, copies: copies, log: w.log}
	w.endings = endings{
		Endings: consume.Endings{JS: js, Store: w.store, Layout: w.layout, Log: w.log,
			MakeRejects: w.own.createRejects},
		fleet: f, readable: w.readable,
	}
	w.probe = probe{js: js, settings: w.settings, readable: w.readable, log: w.log}
	w.keeper = consume.NewKeeper(consume.Config{
		Store: w.store, Layout: w.layout, Limits: w.settings.limits(), Metrics: w.metrics.sessions,
		Waits: w.status.waits,
		Rules: w.rules, Copies: copies, Log: w.log, Progress: w.progress, Listed: w.streamCheck.allListed,
	})
}

// readShare finds streams and reads its share until ctx ends and every session has ended.
func (w *worker) readShare(ctx context.Context) error {
	stopHearing, err := w.streamCheck.subscribe(w.discoverDue)
	if err != nil {
		return err
	}
	defer stopHearing()
	if err := awaitLeader(ctx, w.log, w.discover); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return w.settings.createError(err)
	}
	// The fleet's context outlives ctx: a worker stays in the fleet until its last commit.
	inFleet, leave := context.WithCancel(context.WithoutCancel(ctx))
	left := make(chan struct{})
	go func() {
		defer close(left)
		w.fleet.Run(inFleet)
	}()

	w.running.Go(func() { w.keeper.KeepClaiming(ctx) })
	if w.rules != nil {
		w.running.Go(func() { w.keeper.KeepSweeping(ctx) })
	}
	ticker := time.NewTicker(discoverEvery)
	defer ticker.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-ticker.C:
			w.discoverDue.Give()
		case <-w.discoverDue:
			if err := w.discover(ctx); err != nil && ctx.Err() == nil {
				w.log.Warn().Err(err).Msg("streams could not be listed")
			}
		case <-w.fleet.Changed():
		}
		if ctx.Err() == nil {
			w.applyShare(ctx, w.fleet.Share())
		}
	}
	w.log.Info().Msg("stopping: committing what is in memory")
	w.fleet.StartLeaving()
	w.running.Wait()
	w.streamCheck.running.Wait()
	w.probe.running.Wait()
	leave()
	<-left
	return nil
}

// applyShare starts to read the streams that are newly assigned to this worker, and releases those that no
// longer are. An unknown share changes nothing.
func (w *worker) applyShare(ctx context.Context, s fleet.Share) {
	if !s.Known {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keeper.Divide(len(s.Mine))
	for name, stop := range w.sessions {
		if !s.Mine[name] {
			stop() // the session commits and ends, which releases the stream
		}
	}
	for name := range s.Mine {
		if w.sessions[name] == nil && !s.Busy[name] && !w.absent[name] {
			w.startReading(ctx, name)
		}
	}
	w.status.setConn(w.js.Conn())
	w.metrics.fleetWorkers.Set(float64(s.Workers))
	if share := fmt.Sprint(s.Workers, s.Streams, slices.Sorted(maps.Keys(s.Mine))); share != w.lastShare {
		w.lastShare = share
		line := w.log.Info().Int("workers", s.Workers).Int("of", s.Streams).Strs("streams",
			slices.Sorted(maps.Keys(s.Mine)))
		if len(s.Mine) == 0 {
			line.Msg("this worker has no stream: standing by")
		} else {
			line.Msg("this worker's streams")
		}
	}
}

// startReading starts a stream's sessions. The caller holds mu.
func (w *worker) startReading(working context.Context, name string) {
	ctx, stop := context.WithCancel(working)
	w.sessions[name] = stop
	w.status.setReading(name, false)
	w.metricStreams[name] = true
	w.metrics.held.Set(float64(len(w.sessions)))
	w.fleet.Hold(name)
	w.running.Go(func() {
		defer stop()
		show := func(reading bool) { w.status.setReading(name, reading) }
		gone, lost := w.keeper.Keep(ctx, name, show, func(bytes int) source.Stream {
			s := source.New(w.js, w.settings.Redis.Namespace, name, bytes)
			s.CreateRejects = w.own.createRejects
			s.EndUnknown = source.NewEndUnknownLog(w.log, name)
			return s
		})
		if lost {
			w.endings.ReportLoss(working, name) // even if the fleet has released the stream in the meantime
		}
		w.mu.Lock()
		delete(w.sessions, name)
		if gone {
			w.absent[name] = true
		}
		w.metrics.held.Set(float64(len(w.sessions)))
		w.mu.Unlock()
		w.status.remove(name)
		w.fleet.Release(name)
	})
}

// discover finds which streams exist, and notifies the fleet. At the first check it creates the missing ones.
func (w *worker) discover(ctx context.Context) error {
	all, err := listStreams(ctx, w.js)
	switch {
	case err != nil:
	case w.known == nil:
		all, err = w.own.createAtStart(ctx, all)
	default:
		all, err = w.own.recreateLost(ctx, all)
	}
	if err != nil {
		return err
	}
	w.fleet.SetReadable(w.readable()) // the rules may have been reloaded
	listed, err := w.store.Streams(ctx)
	w.counted.set(all, listed)
	if err == nil {
		w.streamCheck.resetLive(all, listed)
		err = w.streamCheck.listNew(ctx, all)
	}
	if err != nil && ctx.Err() == nil {
		w.log.Debug().Err(err).Msg("not every stream is listed yet")
	}
	w.mu.Lock()
	for _, name := range all {
		delete(w.absent, name)
	}
	w.mu.Unlock()
	w.known = append(all, w.endings.endDeleted(ctx, w.known, all, listed)...)
	w.fleet.SetStreams(w.known)
	w.forgetMetrics()
	w.probe.check(ctx, all)
	w.reportIdleRules(all)
	return nil
}

// readable returns the streams that this worker may read: those of INGEST_STREAMS and of the rules in force.
func (w *worker) readable() fleet.Globs {
	if set := w.rules.Current(); set != nil {
		return append(slices.Clone(w.settings.Streams), set.Streams()...)
	}
	return w.settings.Streams
}

func (w *worker) forgetMetrics() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name := range w.metricStreams {
		if w.sessions[name] == nil && !slices.Contains(w.known, name) {
			w.metrics.sessions.Forget(name)
			delete(w.metricStreams, name)
		}
	}
}

// reportIdleRules finds the rules that count nothing, because they match no stream that is read. It logs new
// ones; /readyz lists all.
func (w *worker) reportIdleRules(all []string) {
	set, reads := w.rules.Current(), w.readable()
	if set == nil {
		return
	}
	var idle []string
	for _, at := range set.Unused(slices.DeleteFunc(slices.Clone(all), func(name string) bool {
		return !reads.Match(name)
	})) {
		idle = append(idle, fmt.Sprintf("%s:%d: this rule counts nothing: %s", w.settings.Rules, at.Line,
			w.whyUnused(at.Stream, all)))
	}
	before := w.status.setIdleRules(idle)
	for _, text := range idle {
		if !slices.Contains(before, text) {
			w.log.Warn().Msg(text)
		}
	}
}

func (w *worker) whyUnused(stream string, all []string) string {
	if !rules.IsGlob(stream) {
		if slices.Contains(all, stream) {
			return "the stream " + stream + " holds no hits, and is never read"
		}
		return "there is no stream " + stream + " yet"
	}
	for _, name := range all {
		if (fleet.Globs{stream}).Match(name) {
			return fmt.Sprintf("it matches the stream %s, which INGEST_STREAMS=%s leaves out: add it there, or name "+
				"the stream in the rule, without a wildcard", name, w.settings.Streams)
		}
	}
	return fmt.Sprintf("no stream matches %s yet; INGEST_STREAMS=%s must match it, too, because only a name without a "+
		"wildcard makes a stream read", stream, w.settings.Streams)
}
