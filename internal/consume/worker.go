package consume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"tallyroll/internal/boot"
	"tallyroll/internal/window"
)

const (
	// discoverEvery is how often streams are looked for, whatever is heard of them.
	discoverEvery = time.Second
	// maxReopen bounds the pause before a stream that fails again and again is taken again.
	maxReopen = 2 * time.Second
	// foreignRetry is the least pause before one whose cursor something else has written to: a person has to mend it.
	foreignRetry = 10 * time.Second
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
	fleet    *fleet
	look     chan struct{} // streams are to be looked for at once
	census   census

	running sync.WaitGroup
	mu      sync.Mutex
	open    map[string]*held // by stream
	absent  map[string]bool  // streams that a session has found gone, until they are listed again
	streams int              // its share; 0 before it is known, too
	settled bool             // its share is known

	// Of run's goroutine alone.
	known   []string        // all streams that there are; nil before the first look
	counted map[string]bool // streams that may have series of metrics
	probed  struct {        // see probe
		streams string // that were read then
		at      time.Time
		bad     atomic.Bool // any goroutine's
	}
	missing map[string]absence // streams that are not listed any more, at the first such look
	shareIs string             // what the log last said of it
}

// held is a stream that this worker reads, or is about to let go.
type held struct {
	stop   context.CancelFunc
	isOpen atomic.Bool
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
		return w.settings.refused(err) // at start: say what is wrong instead of waiting in silence
	}
	// The fleet outlives ctx: a worker stays in it until its last commit.
	inFleet, leave := context.WithCancel(context.WithoutCancel(ctx))
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	failed := make(chan error, 1)
	go func() { failed <- w.fleet.run(inFleet) }()

	ticker := time.NewTicker(discoverEvery)
	defer ticker.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case err := <-failed:
			stop()
			w.running.Wait()
			leave()
			return err
		case <-ticker.C:
			signal(w.look)
		case <-w.look:
			if err := w.discover(ctx); err != nil && ctx.Err() == nil {
				w.log.Warn().Err(err).Msg("streams could not be listed")
			}
		case <-w.fleet.changed:
		}
		if ctx.Err() == nil {
			w.follow(ctx, w.fleet.share())
		}
	}
	w.log.Info().Msg("stopping: committing what is in memory")
	w.fleet.leaving()
	w.running.Wait()
	leave()
	if err := <-failed; err != nil {
		w.log.Debug().Err(err).Msg("the fleet had failed")
	}
	w.fleet.leave()
	return nil
}

// follow begins to read what has become this worker's and lets go of what has
// become another's. Where the share is not known all stays as it is.
func (w *worker) follow(ctx context.Context, s share) {
	if !s.known {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.streams = len(s.mine)
	for name, h := range w.open {
		if !s.mine[name] {
			h.stop() // and commits: its end is its release
		}
	}
	for name := range s.mine {
		if w.open[name] == nil && !s.busy[name] && !w.absent[name] {
			w.read(ctx, name)
		}
	}
	w.settled = !s.waiting
	w.metrics.fleetWorkers.Set(float64(s.workers))
	if is := fmt.Sprint(s.workers, s.streams, slices.Sorted(maps.Keys(s.mine))); is != w.shareIs && !s.waiting {
		w.shareIs = is
		line := w.log.Info().Int("workers", s.workers).Int("of", s.streams).Strs("streams", slices.Sorted(maps.Keys(s.mine)))
		if len(s.mine) == 0 {
			line.Msg("no stream is this worker's: standing by")
		} else {
			line.Msg("this worker's streams")
		}
	}
}

// read starts the sessions of a stream; under mu.
func (w *worker) read(working context.Context, name string) {
	ctx, stop := context.WithCancel(working)
	h := &held{stop: stop}
	w.open[name] = h
	w.counted[name] = true
	w.metrics.held.Set(float64(len(w.open)))
	w.fleet.hold(name)
	w.running.Go(func() {
		defer stop()
		gone, lost := w.keep(ctx, name, &h.isOpen, func() source {
			s := newJetStreamSource(w.js, name, w.pullBytes())
			s.remake = w.ensureRejected
			s.unsure = w.sayUnsure(name)
			return s
		})
		if lost {
			w.admitLoss(working, name) // also where the fleet has let go of the stream meanwhile
		}
		w.mu.Lock()
		delete(w.open, name)
		if gone {
			w.absent[name] = true
		}
		w.metrics.held.Set(float64(len(w.open)))
		w.mu.Unlock()
		w.fleet.release(name)
	})
}

// discover looks which streams there are, and tells the fleet. At the first look
// it makes the streams that are wanting.
func (w *worker) discover(ctx context.Context) error {
	all, err := w.list(ctx)
	if err != nil {
		return err
	}
	if w.known == nil {
		w.sayIdle(ctx, all)
		made, err := w.create(ctx, w.wanting(all))
		if err != nil {
			return err
		}
		all = append(all, made...)
	}
	err = w.recall(ctx, all)
	if err == nil {
		err = w.enlist(ctx, all)
	}
	if err != nil && ctx.Err() == nil {
		w.log.Debug().Err(err).Msg("not every stream is listed yet")
	}
	w.mu.Lock()
	for _, name := range all {
		delete(w.absent, name)
	}
	w.mu.Unlock()
	w.known = append(all, w.unlisted(ctx, all)...)
	w.fleet.exist(w.known)
	w.forgetMetrics()
	w.probe(ctx, all)
	return nil
}

// forgetMetrics removes the series of streams that are gone.
func (w *worker) forgetMetrics() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name := range w.counted {
		if w.open[name] == nil && !slices.Contains(w.known, name) {
			w.metrics.forget(name)
			delete(w.counted, name)
		}
	}
}

// list names all streams that there are: other workers may read others than this one.
func (w *worker) list(ctx context.Context) ([]string, error) {
	all := []string{}
	list := w.js.StreamNames(ctx)
	for name := range list.Name() {
		all = append(all, name)
	}
	if err := list.Err(); err != nil {
		return nil, fmt.Errorf("list streams: %w", err)
	}
	return all, nil
}

// wanting are the streams to be made, by name, with their subjects: HITS, or
// HITS_0… where there are to be several, if no stream matches; or those of
// HITS_0… that are missing, if some are there: whoever was to make them has died
// on its way, or INGEST_PARTITIONS has been raised.
func (w *worker) wanting(all []string) map[string]string {
	own := w.own()
	if !slices.ContainsFunc(all, w.settings.Streams.match) {
		return own
	}
	if len(own) == 1 || !slices.ContainsFunc(all, func(name string) bool { return own[name] != "" }) {
		return nil // all streams are somebody else's
	}
	maps.DeleteFunc(own, func(name, _ string) bool { return slices.Contains(all, name) || !w.settings.Streams.match(name) })
	return own
}

// own are the streams that a worker makes, by name, with their subjects.
func (w *worker) own() map[string]string {
	n := w.settings.Partitions
	if n == 1 {
		return map[string]string{"HITS": w.settings.Subject}
	}
	subjects := make(map[string]string, n)
	for i := range n {
		subjects[fmt.Sprintf("HITS_%d", i)] = fmt.Sprintf("hitp.%d.>", i)
	}
	return subjects
}

// create makes streams; another worker may be faster.
func (w *worker) create(ctx context.Context, subjects map[string]string) ([]string, error) {
	for name := range subjects {
		if !w.settings.Streams.match(name) {
			return nil, &boot.SettingError{Key: "INGEST_STREAMS", Value: w.settings.Streams.String(),
				Allowed: fmt.Sprintf("names of streams that there are, or globs that the new stream %s matches", name)}
		}
	}
	var names []string
	for name, subject := range subjects {
		_, err := w.js.CreateStream(ctx, jetstream.StreamConfig{
			Name: name, Subjects: []string{subject},
			Replicas: w.settings.Replicas, MaxAge: w.settings.MaxAge,
		})
		if err != nil && !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return nil, w.uncreated(ctx, name, subject, err)
		}
		w.log.Info().Str("stream", name).Str("subject", subject).Stringer("max_age", w.settings.MaxAge).Int("replicas", w.settings.Replicas).Msg("stream created")
		names = append(names, name)
	}
	return names, nil
}

// keep runs one session after another, each with a new source, until ctx ends or
// the stream is gone, which it reports, and whether hits are known to be lost with it.
func (w *worker) keep(ctx context.Context, name string, isOpen *atomic.Bool, newSource func() source) (gone, lost bool) {
	log := w.log.With().Str("stream", name).Logger()
	w.metrics.start(name)
	defer w.metrics.end(name)
	defer w.waits.end(name)
	rejects := newRejectLog(log)
	defer func() { rejects.tell(time.Now(), true) }()
	pause, maxIdle := time.Duration(0), stalledAfter
	unread := false
	for ctx.Err() == nil {
		began := time.Now()
		w.metrics.sessions.WithLabelValues(name).Inc()
		s := &session{
			stream: name, source: newSource(), store: w.store, layout: w.layout,
			limits: w.limits(), metrics: w.metrics, outage: w.outage, log: log, progress: w.progress,
			waits: w.waits, clocks: w.clocks, rejects: rejects, maxIdle: maxIdle,
			listed: w.upToDate,
		}
		err := s.run(ctx, func() {
			w.waits.end(name)
			isOpen.Store(true)
		})
		isOpen.Store(false)
		if s.buffer != nil {
			unread = s.unread()
		}
		if errors.Is(err, errStalled) && !s.hasRead() {
			maxIdle = min(2*maxIdle, maxStalledAfter)
		} else {
			maxIdle = stalledAfter
		}
		var foreign *window.ForeignError
		switch {
		case err == nil:
			log.Info().Msg("stream let go")
			return false, false
		case errors.Is(err, errNoStream):
			log.Warn().Bool("hits_lost", unread).Msg("the stream is gone")
			return true, unread
		case ctx.Err() != nil:
			return false, false
		case errors.As(err, &foreign):
			pause = foreignRetry
		case s.writers == nil || errors.Is(err, window.ErrFenced): // it never got going, or someone else has it
			pause = min(max(2*pause, 100*time.Millisecond), maxReopen)
		case time.Since(began) > maxReopen:
			pause = 0
		default:
			pause = min(pause+50*time.Millisecond, maxReopen)
		}
		w.waits.because(name, err)
		log.Warn().Err(err).Msg("taking the stream again")
		select {
		case <-ctx.Done():
		case <-time.After(pause + rand.N(pause+time.Millisecond)):
		}
	}
	return false, false
}

// What all streams of a worker may keep in memory together. Each gets its part
// when it is taken, by how many there are then.
const (
	maxPullBytes = 64 << 20 // messages that the client holds
	maxBuffered  = 1 << 21  // commands in the filling halves of the buffers
)

func (w *worker) pullBytes() int { return maxPullBytes / w.parts() }

func (w *worker) limits() limits {
	l := w.settings.limits()
	l.maxBuffered = maxBuffered / w.parts()
	return l
}

func (w *worker) parts() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(1, w.streams)
}

// ensureRejected makes the stream of rejects if it is missing.
func (w *worker) ensureRejected(ctx context.Context) error {
	return ensureRejected(ctx, w.js, w.settings.Replicas, w.settings.MaxAge)
}

// reading are the streams that have not been let go.
func (w *worker) reading() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.open))
}

// unready says why this worker does not do its share of the work; empty if it does. One that
// stands by is ready, too.
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
		if w.open[name].isOpen.Load() {
			continue
		}
		if why := w.waits.why(name); why != nil {
			return fmt.Sprintf("stream %s is not being read: %v", name, why)
		}
		return fmt.Sprintf("stream %s is not being read yet", name)
	}
	return w.waits.lasting()
}

// Globs are names of streams, with * and ? as in file names.
type Globs []string

// UnmarshalText reads comma-separated globs.
func (g *Globs) UnmarshalText(text []byte) error {
	*g = nil
	for glob := range strings.SplitSeq(string(text), ",") {
		glob = strings.TrimSpace(glob)
		if _, err := path.Match(glob, ""); err != nil || glob == "" {
			return fmt.Errorf("names of streams, or globs such as HITS*, comma-separated")
		}
		*g = append(*g, glob)
	}
	return nil
}

func (g Globs) String() string { return strings.Join(g, ",") }

// match never matches the stream of rejects, whose hits have been refused once,
// nor the streams that are the fleets' buckets.
func (g Globs) match(name string) bool {
	if name == rejectedStream || strings.HasPrefix(name, "KV_"+bucketPrefix) {
		return false
	}
	for _, glob := range g {
		if ok, _ := path.Match(glob, name); ok {
			return true
		}
	}
	return false
}

// outage says once when Redis is lost and once when it is back.
type outage struct {
	log   zerolog.Logger
	mu    sync.Mutex
	since time.Time
}

func (o *outage) begin(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() {
		o.since = time.Now()
		o.log.Warn().Err(err).Msg("Redis lost: hits wait in the stream")
	}
}

func (o *outage) over() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.since.IsZero() {
		o.log.Info().Stringer("after", time.Since(o.since).Round(time.Millisecond)).Msg("Redis back")
		o.since = time.Time{}
	}
}
