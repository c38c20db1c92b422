package watch

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"tallyroll/internal/buildinfo"
	"tallyroll/internal/release"
	"tallyroll/internal/setting"
	"tallyroll/internal/web"
	"tallyroll/internal/window"
)

const (
	// lookAtStream is the interval at which the stream's identity is checked.
	lookAtStream = 2 * time.Second
	// catchUpWithin bounds the reading of the stream before the first evaluation.
	catchUpWithin = 10 * time.Second
	againAfter    = time.Second
)

// Run evaluates the rules and notifies the targets until ctx ends. It waits for NATS and Redis. At each
// signal of reload, which may be nil, it reads the file again. The settings must have been validated.
func Run(ctx context.Context, settings Settings, log zerolog.Logger, reload <-chan os.Signal) error {
	s := &service{settings: settings, name: settings.Worker + "-" + rand.Text()[:6], patience: patienceFor(settings.Interval), metrics: newMetrics(), log: log, changed: make(chan struct{}, 1)}
	s.server = web.Server{Metrics: s.metrics.Metrics, Files: buildinfo.NewFiles(s.metrics.Registry, log), Log: log}
	_, err := setting.Open(s.server.Files, "rules", settings.file(), Parse, s.use)
	if err != nil {
		return err
	}
	listeners, err := settings.addresses().Listen(s.server.Files)
	if err != nil {
		return err
	}
	log.Info().Str("version", release.Version()).Str("nats", settings.NATS.URL.String()).Str("redis", settings.Redis.URL.Addr()).Str("namespace", settings.Redis.Namespace).
		Str("url", listeners.URL()).Msg("started")

	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.server.Files.Follow(gctx, reload) })
	group.Go(func() error { return s.watch(gctx) })
	group.Go(func() error {
		mux := http.NewServeMux()
		s.server.RouteStatus(mux, func(context.Context) string { return s.whyNotReady() })
		return s.server.Serve(gctx, listeners, mux)
	})
	if err := group.Wait(); err != nil {
		return err
	}
	log.Info().Msg("stopped")
	return nil
}

type service struct {
	settings Settings
	name     string // unique among processes
	patience patience
	server   web.Server
	metrics  *metrics
	log      zerolog.Logger
	book     atomic.Pointer[Book]
	recalled []*entry               // owned by runSessions: states that a rolled-back stream lacks
	changed  chan struct{}          // has a value if the session's rule set is outdated
	why      atomic.Pointer[string] // empty: it is ready; nil: it has not connected yet
}

func (s *service) whyNotReady() string {
	if why := s.why.Load(); why != nil {
		return *why
	}
	return "NATS has not answered yet"
}

func (s *service) notReady(why string) { s.why.Store(&why) }

// use stores a rule set for the next session.
func (s *service) use(book *Book, line *zerolog.Event) {
	s.book.Store(book)
	s.warnUnsigned(book)
	line.Int("rules", len(book.Rules)).Int("targets", len(book.Targets)).Str("fingerprint", book.Print)
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *service) warnUnsigned(book *Book) {
	for _, t := range book.Targets {
		if t.posts() && t.SecretFile == "" {
			s.log.Warn().Str("target", t.Name).Msg("webhook has no secret_file: its changes are not signed, so its receiver cannot verify the sender")
		}
	}
}

// watch runs sessions one after the other. A new one starts if the rule set changes or the stream is replaced.
func (s *service) watch(ctx context.Context) error {
	settings := s.settings
	conn, err := settings.NATS.Connect(ctx, "tallyroll watch", s.log)
	if ctx.Err() != nil {
		if conn != nil {
			conn.Close()
		}
		return nil
	}
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := settings.NATS.JetStream(conn)
	if err != nil {
		return err
	}
	client := settings.Redis.Logging(s.log).Client()
	defer client.Close()
	reader := window.NewReader(window.NewStore(client, settings.Redis.Namespace))
	var said saying
	for ctx.Err() == nil {
		err := s.session(ctx, js, reader, &said)
		if err == nil || ctx.Err() != nil {
			continue
		}
		s.notReady(err.Error())
		said.warn(s.log, err, "session failed: it is restarted")
		select {
		case <-ctx.Done():
		case <-time.After(againAfter):
		}
	}
	return nil
}

var errBook = errors.New("the rule set has changed")

// session evaluates and delivers with one rule set and one stream. It returns nil if ctx ends or the rule set
// changes.
func (s *service) session(ctx context.Context, js jetstream.JetStream, reader Reader, said *saying) error {
	select {
	case <-s.changed:
	default:
	}
	book, namespace := s.book.Load(), s.settings.Redis.Namespace
	opening, cancel := context.WithTimeout(ctx, catchUpWithin)
	defer cancel()
	stream, err := openStream(opening, js, namespace, Keeping{s.settings.Keep, s.settings.Changes, s.settings.Replicas})
	if err != nil {
		return err
	}
	l := newLog(js, namespace)
	group, gctx := errgroup.WithContext(ctx)
	var started []func() error
	for _, t := range book.Targets {
		s.metrics.prepare(t.Name)
		if t.Alertmanager != "" {
			a := &alertSync{log: l, target: t, client: newClient(), timeout: s.settings.Timeout, patience: s.patience, metrics: s.metrics, out: s.log}
			started = append(started, func() error { return a.run(gctx, s.settings.Interval) })
			continue
		}
		d := &delivery{
			log: l, name: s.name, target: t, teller: t.teller(js), timeout: s.settings.Timeout, giveUp: s.settings.GiveUp,
			perKey: int(stream.Config.MaxMsgsPerSubject), patience: s.patience, metrics: s.metrics, out: s.log,
		}
		if err := d.open(opening, stream.State.LastSeq); err != nil { // before the first evaluation, so that the target misses no change
			return err
		}
		started = append(started, func() error { return d.run(gctx) })
	}
	for _, run := range started {
		group.Go(run)
	}
	e := &evaluator{
		log: l, eye: eye{reader, s.settings.MaxSum}, book: book, name: s.name, interval: s.settings.Interval, patience: s.patience, maxStates: s.settings.MaxStates,
		keepAge: stream.Config.MaxAge, life: ctx, metrics: s.metrics, out: s.log, recalled: s.recalled,
	}
	caughtUp := make(chan struct{})
	group.Go(func() error {
		return l.follow(gctx, jetstream.DeliverLastPerSubjectPolicy, func() { close(caughtUp) })
	})
	group.Go(func() error {
		select {
		case <-gctx.Done():
			return nil
		case <-caughtUp:
		case <-time.After(catchUpWithin): // the server refuses changes of states that are not read yet
		}
		s.notReady("")
		said.good(s.log, "session recovered")
		return e.run(gctx)
	})
	group.Go(func() error { return l.guard(gctx, stream.Created) })
	group.Go(func() error {
		select {
		case <-gctx.Done():
			return nil
		case <-s.changed:
			return errBook
		}
	})
	err = group.Wait()
	s.recalled = e.recalled
	switch {
	case errors.Is(err, errBook):
		return nil
	case errors.Is(err, errRolledBack):
		s.recalled = l.recalled(e.recalled)
	}
	return err
}

func (t *Target) teller(js jetstream.JetStream) teller {
	if t.NATS != "" {
		return &bus{js, t.NATS}
	}
	return &webhook{t.Webhook, t.WebhookFile, t.SecretFile, newClient()}
}
