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

	"tallyroll/internal/platform/buildinfo"
	"tallyroll/internal/platform/release"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/platform/wait"
	"tallyroll/internal/web"
)

const (
	// catchUpTimeout bounds the reading of the stream before the first evaluation.
	catchUpTimeout    = 10 * time.Second
	sessionRetryDelay = time.Second
)

// Run evaluates the rules and notifies the targets until ctx ends. It waits for NATS and Redis. At each
// signal of reload, which may be nil, it reads the files again. The settings must have been validated.
func Run(ctx context.Context, settings Settings, log zerolog.Logger, reload <-chan os.Signal) error {
	s := &service{settings: settings, process: settings.Worker + "-" + rand.Text()[:6],
		timeouts: newTimeouts(settings.Interval), metrics: newMetrics(), log: log,
		ruleSetChanged: make(chan struct{}, 1)}
	s.server = web.Server{Metrics: s.metrics.Metrics, Files: buildinfo.NewFiles(s.metrics.Registry, log), Log: log}
	_, err := setting.OpenAll(s.server.Files, "rules", settings.files(), settings.parse(parseWithFiles), s.storeRuleSet)
	if err != nil {
		return err
	}
	listeners, err := web.Addresses{Addr: settings.Addr}.Listen(s.server.Files)
	if err != nil {
		return err
	}
	log.Info().Str("version", release.Version()).Str("nats", settings.NATS.URL.String()).Str("redis",
		settings.Redis.URL.Addr()).Str("namespace", settings.Redis.Namespace).
		Str("url", listeners.URL()).Msg("started")

	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.server.Files.Follow(gctx, reload) })
	group.Go(func() error { return s.runSessions(gctx) })
	group.Go(func() error {
		mux := http.NewServeMux()
		s.server.RouteStatus(mux, func(context.Context) string { return s.readinessProblem() })
		return s.server.Serve(gctx, listeners, mux)
	})
	if err := group.Wait(); err != nil {
		return err
	}
	log.Info().Msg("stopped")
	return nil
}

type service struct {
	settings       Settings
	process        string // unique among processes
	timeouts       timeouts
	server         web.Server
	metrics        *metrics
	log            zerolog.Logger
	ruleSet        atomic.Pointer[RuleSet]
	hasOpened      bool                   // owned by runSessions: a session has opened the stream
	ruleSetChanged chan struct{}          // has a value if the session's rule set is outdated
	notReadyReason atomic.Pointer[string] // empty: it is ready; nil: it has not connected yet
}

func (s *service) readinessProblem() string {
	if reason := s.notReadyReason.Load(); reason != nil {
		return *reason
	}
	return "NATS has not answered yet"
}

func (s *service) setNotReady(reason string) { s.notReadyReason.Store(&reason) }

// storeRuleSet stores a rule set for the next session.
func (s *service) storeRuleSet(set *RuleSet, line *zerolog.Event) {
	s.ruleSet.Store(set)
	s.warnUnsignedWebhooks(set)
	line.Int("rules", len(set.Rules)).Int("targets", len(set.Targets)).Str("fingerprint", set.Fingerprint)
	select {
	case s.ruleSetChanged <- struct{}{}:
	default:
	}
}

func (s *service) warnUnsignedWebhooks(set *RuleSet) {
	for _, t := range set.Targets {
		if t.kind.isSigned && t.SecretFile == "" {
			s.log.Warn().Str("target", t.Name).Msg("webhook has no secret_file: its changes are not signed, so its " +
				"receiver cannot verify the sender")
		}
	}
}

// runSessions runs one session after the other: a new one for each rule set, and for a replaced stream.
func (s *service) runSessions(ctx context.Context) error {
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
	asking := settings.newQuerier(client)
	var problems problemLog
	for ctx.Err() == nil {
		err := s.runSession(ctx, js, asking, &problems)
		if err == nil || ctx.Err() != nil {
			continue
		}
		if !s.hasOpened && errors.As(err, new(setting.UsageError)) {
			return err // later, the servers with JetStream may only be away
		}
		s.setNotReady(err.Error())
		problems.warn(s.log, err, "session failed: restarting")
		_ = wait.Sleep(ctx, sessionRetryDelay)
	}
	return nil
}

var errRuleSetChanged = errors.New("the rule set has changed")

// runSession runs one rule set with one stream. It returns nil if ctx ends or the rule set changes.
func (s *service) runSession(ctx context.Context, js jetstream.JetStream, asking querier, problems *problemLog) error {
	select {
	case <-s.ruleSetChanged:
	default:
	}
	set, namespace := s.ruleSet.Load(), s.settings.Redis.Namespace
	openCtx, cancel := context.WithTimeout(ctx, catchUpTimeout)
	defer cancel()
	keep := Retention{s.settings.Keep, s.settings.Changes, s.settings.Replicas}
	info, err := openStream(openCtx, js, namespace, keep)
	if err != nil {
		return err
	}
	s.hasOpened = true
	stream := newStateStream(js, namespace)
	stream.created = info.Created
	stream.setStreamInfo(info)
	group, gctx := errgroup.WithContext(ctx)
	var tasks []func() error
	for _, t := range set.Targets {
		s.metrics.initTarget(t.Name)
		notifier := t.newNotifier(js)
		if notifier == nil {
			a := &alertSync{
				stream: stream, target: t, client: newClient(),
				timeout: s.settings.Timeout, timeouts: s.timeouts, metrics: s.metrics, log: s.log,
			}
			tasks = append(tasks, func() error { return a.run(gctx, s.settings.Interval) })
			continue
		}
		d := &delivery{
			stream: stream, process: s.process, target: t, notifier: notifier, giveUp: s.settings.GiveUp,
			timeout: s.settings.Timeout, timeouts: s.timeouts, metrics: s.metrics, log: s.log,
		}
		// Before the first evaluation, so that the target misses no change.
		if err := d.openProgress(openCtx, info.State.LastSeq); err != nil {
			return err
		}
		tasks = append(tasks, func() error { return d.run(gctx) })
	}
	for _, run := range tasks {
		group.Go(run)
	}
	e := &evaluator{
		stream: stream, querier: asking, ruleSet: set, process: s.process,
		interval: s.settings.Interval, timeouts: s.timeouts, maxStates: s.settings.MaxStates,
		runCtx: ctx, metrics: s.metrics, log: s.log,
	}
	caughtUp := make(chan struct{})
	group.Go(func() error {
		return stream.follow(gctx, jetstream.DeliverLastPerSubjectPolicy, func() { close(caughtUp) })
	})
	group.Go(func() error {
		select {
		case <-gctx.Done():
			return nil
		case <-caughtUp:
		case <-time.After(catchUpTimeout): // the server refuses changes of states that are not read yet
		}
		s.setNotReady("")
		problems.recovered(s.log, "session recovered")
		return e.run(gctx)
	})
	group.Go(func() error { return stream.monitor(gctx) })
	group.Go(func() error {
		select {
		case <-gctx.Done():
			return nil
		case <-s.ruleSetChanged:
			return errRuleSetChanged
		}
	})
	err = group.Wait()
	if errors.Is(err, errRuleSetChanged) {
		return nil
	}
	return err
}
