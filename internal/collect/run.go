package collect

import (
	"context"
	"net/http"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"tallyroll/internal/platform/buildinfo"
	"tallyroll/internal/platform/natsconn"
	"tallyroll/internal/platform/outbox"
	"tallyroll/internal/platform/program"
	"tallyroll/internal/platform/release"
	"tallyroll/internal/web"
	"tallyroll/internal/web/access"
)

const (
	// flushWithin bounds a write to a NATS server that does not read, which blocks the publisher.
	flushWithin = 3 * time.Second
	// answerRoom is for reading the body before the wait for JetStream, and writing the answer after it.
	answerRoom = 2 * bodyWithin
)

// Run listens at once, even without NATS, until ctx ends and SHUTDOWN_DELAY, when it is not ready any more,
// is over. Then, in this order, within 6 seconds: it stops listening; requests under way wait at most grace
// for their answer; the publisher stops; the connection to NATS closes. At each signal of reload, which may
// be nil, it rereads its files. The settings must have been validated.
func Run(ctx context.Context, settings Settings, log zerolog.Logger, reload <-chan os.Signal) error {
	ctx, leaving, stop := settings.Shutdown.Begin(ctx, log)
	defer stop()
	s, err := newService(settings, log)
	if err != nil {
		return err
	}
	s.server.Leaving = leaving
	settings.Pages.warn(log)
	listeners, err := settings.Listen(s.server.Files)
	if err != nil {
		return err
	}
	log.Info().Str("version", release.Version()).Str("nats", settings.NATS.URL.String()).
		Str("subject", settings.Subject).Int("tokens", s.hits.callers.tokens.Count()).
		Bool("pages", settings.Pages.on()).Str("url", listeners.URL()).Msg("started")

	served, endPublisher := context.WithCancel(context.WithoutCancel(ctx)) // ends when no request is under way any more
	defer endPublisher()
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.publish(gctx, served) })
	group.Go(func() error { return s.server.Files.Follow(gctx, reload) })
	group.Go(func() error {
		defer endPublisher()
		return s.server.Serve(gctx, listeners, s.handler(), func(srv *http.Server) {
			srv.WriteTimeout = settings.Timeout + answerRoom
			srv.MaxHeaderBytes = 16 << 10
		})
	})
	if err := group.Wait(); err != nil {
		return err
	}
	log.Info().Msg("stopped")
	return nil
}

type service struct {
	server   web.Server
	settings Settings
	budget   *web.Budget
	hits     hitsHandler
	pages    pages
	storage  storage
	metrics  *metrics
	log      zerolog.Logger
}

func newService(settings Settings, log zerolog.Logger) (*service, error) {
	s := &service{settings: settings, log: log,
		budget: web.NewBudget(int64(settings.MaxRequests), settings.MaxWaiting)}
	s.metrics = newMetrics(s.budget)
	s.server = web.Server{Metrics: s.metrics.Metrics, Files: buildinfo.NewFiles(s.metrics.Registry, log), Log: log,
		Apart: settings.MetricsAddr.Set()}
	s.storage.target, s.storage.budget = newTarget(settings.Subject, log), s.budget
	s.storage.timeout, s.storage.failures = settings.Timeout, program.Sampled(log)
	tokens, err := access.New(access.TokenSettings{Program: "COLLECT", File: settings.TokensFile}, s.server.Files)
	if err != nil {
		return nil, err
	}
	bodies, err := newBodyReader(settings.MaxBody, s.budget)
	if err != nil {
		return nil, err
	}
	s.hits = hitsHandler{callers{tokens, settings.Hosts}, bodies, &s.storage, settings.MaxHits}
	s.pages = pages{settings.Pages, &s.storage}
	return s, nil
}

func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	s.hits.route(mux)
	s.pages.route(mux)
	s.server.RouteStatus(mux, func(context.Context) string { return s.storage.whyNotReady() })
	describe(mux, s.settings).RoutePages()
	mux.Handle("GET /{$}", http.RedirectHandler("/docs", http.StatusFound))
	return s.bound(mux)
}

// bound is the middleware of every request. It bounds concurrent API requests, and answers unknown routes.
func (s *service) bound(mux *http.ServeMux) http.Handler {
	return s.server.Wrap(mux, func(w *web.Response, r *http.Request, pattern string, handler http.Handler) {
		if pattern == "" {
			web.NoRoute(w, r, handler)
			return
		}
		if web.UnderV1(r.URL.Path) {
			w.Header()["Cache-Control"] = noStore
			if !s.budget.Enter() {
				noRoom("COLLECT_MAX_REQUESTS").Write(w)
				return
			}
			defer s.budget.Leave()
		}
		handler.ServeHTTP(w, r) // no route has a wildcard, which mux.ServeHTTP would look up again
	})
}

var noStore = []string{"no-store"}

// publish connects to NATS and publishes what requests bring, until served ends. At the end of ctx, the
// service stops.
func (s *service) publish(ctx, served context.Context) error {
	up := buildinfo.NATSUp(s.metrics.Registry)
	up(false)
	conn, err := s.settings.NATS.Connect(ctx, "tallyroll collect", s.log,
		append(outbox.ConnOptions(), nats.FlusherTimeout(flushWithin), natsconn.ReportUp(up))...)
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
	js, err := s.settings.NATS.JetStream(conn)
	if err != nil {
		return err
	}
	p := newPublisher(conn, s.storage.target, s.metrics, s.settings, s.log)
	s.storage.js.Store(&js)
	s.storage.publisher.Store(p)
	group, gctx := errgroup.WithContext(served)
	group.Go(func() error { return s.storage.target.watch(gctx, js) })
	group.Go(func() error { return p.serve(gctx, ctx.Done()) })
	return group.Wait()
}
