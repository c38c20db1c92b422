package consume

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"tallyroll/internal/window"
)

const (
	// discoverEvery is how often streams are looked for.
	discoverEvery = 2 * time.Second
	// maxReopen bounds the pause before a stream that fails again and again is taken again.
	maxReopen = 2 * time.Second
)

// worker reads every stream that matches, each in a session of its own.
type worker struct {
	settings Settings
	layout   window.Layout
	js       jetstream.JetStream
	store    *window.Store
	metrics  *metrics
	log      zerolog.Logger
	outage   *outage

	running sync.WaitGroup
	mu      sync.Mutex
	open    map[string]*atomic.Bool // by stream: whether it is being read
	looked  bool                    // streams have been looked for
}

// run finds streams and reads them until ctx ends and every session has
// committed what it had.
func (w *worker) run(ctx context.Context) error {
	defer w.running.Wait()
	ticker := time.NewTicker(discoverEvery)
	defer ticker.Stop()
	for {
		if err := w.discover(ctx); err != nil && ctx.Err() == nil {
			if !w.hasLooked() && !transient(err) {
				return err // at start: say what is wrong instead of waiting in silence
			}
			w.log.Warn().Err(err).Msg("streams could not be listed")
		}
		select {
		case <-ctx.Done():
			w.log.Info().Msg("stopping: committing what is in memory")
			return nil
		case <-ticker.C:
		}
	}
}

// discover starts a session for each matching stream that has none. At the
// first look it makes streams where none matches.
func (w *worker) discover(ctx context.Context) error {
	names, err := w.matching(ctx)
	if err == nil && len(names) == 0 && !w.looked {
		names, err = w.create(ctx)
	}
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.looked = true
	for _, name := range names {
		if _, running := w.open[name]; running {
			continue
		}
		isOpen := new(atomic.Bool)
		w.open[name] = isOpen
		w.running.Go(func() {
			w.keep(ctx, name, isOpen, func() source { return newJetStreamSource(w.js, name) })
			w.mu.Lock()
			delete(w.open, name)
			w.mu.Unlock()
		})
	}
	return nil
}

// matching lists the streams that INGEST_STREAMS names.
func (w *worker) matching(ctx context.Context) ([]string, error) {
	var out []string
	list := w.js.StreamNames(ctx)
	for name := range list.Name() {
		if w.settings.Streams.match(name) {
			out = append(out, name)
		}
	}
	if err := list.Err(); err != nil {
		return nil, fmt.Errorf("list streams: %w", err)
	}
	return out, nil
}

// create makes HITS, or HITS_0… where there are to be several.
func (w *worker) create(ctx context.Context) ([]string, error) {
	subjects := map[string]string{"HITS": w.settings.Subject}
	if n := w.settings.Partitions; n > 1 {
		clear(subjects)
		for i := range n {
			subjects[fmt.Sprintf("HITS_%d", i)] = fmt.Sprintf("hitp.%d.>", i)
		}
	}
	var names []string
	for name, subject := range subjects {
		_, err := w.js.CreateStream(ctx, jetstream.StreamConfig{
			Name: name, Subjects: []string{subject},
			Replicas: w.settings.Replicas, MaxAge: w.settings.MaxAge,
		})
		if err != nil && !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return nil, fmt.Errorf("create stream %s on %s: %w", name, subject, err)
		}
		if !w.settings.Streams.match(name) {
			return nil, fmt.Errorf("no stream matches INGEST_STREAMS=%s, and the new stream %s would not either", w.settings.Streams, name)
		}
		w.log.Info().Str("stream", name).Str("subject", subject).Stringer("max_age", w.settings.MaxAge).Int("replicas", w.settings.Replicas).Msg("stream created")
		names = append(names, name)
	}
	return names, nil
}

// keep runs one session after another, each with a new source, until ctx ends or the stream is gone.
func (w *worker) keep(ctx context.Context, name string, isOpen *atomic.Bool, newSource func() source) {
	log := w.log.With().Str("stream", name).Logger()
	w.metrics.start(name)
	defer w.metrics.end(name)
	pause := time.Duration(0)
	for ctx.Err() == nil {
		began := time.Now()
		w.metrics.sessions.WithLabelValues(name).Inc()
		s := &session{
			stream: name, source: newSource(), store: w.store, layout: w.layout,
			limits: w.settings.limits(), metrics: w.metrics, outage: w.outage, log: log,
		}
		err := s.run(ctx, func() { isOpen.Store(true) })
		isOpen.Store(false)
		switch {
		case err == nil:
			log.Info().Msg("stream let go")
			return
		case ctx.Err() != nil:
			return
		case errors.Is(err, errNoStream):
			log.Warn().Msg("the stream is gone")
			return
		case s.writers == nil || errors.Is(err, window.ErrFenced): // it never got going, or someone else has it
			pause = min(max(2*pause, 100*time.Millisecond), maxReopen)
		case time.Since(began) > maxReopen:
			pause = 0
		default:
			pause = min(pause+50*time.Millisecond, maxReopen)
		}
		log.Warn().Err(err).Msg("taking the stream again")
		select {
		case <-ctx.Done():
		case <-time.After(pause + rand.N(pause+time.Millisecond)):
		}
	}
}

func (w *worker) hasLooked() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.looked
}

// ready reports whether streams have been found and every one is being read.
func (w *worker) ready() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, isOpen := range w.open {
		if !isOpen.Load() {
			return false
		}
	}
	return w.looked
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

// match never matches the stream of rejects: its hits have been refused once.
func (g Globs) match(name string) bool {
	if name == rejectedStream {
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

func (o *outage) lasts() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.since.IsZero()
}
