package query

import (
	"context"
	"net/http"
	"os"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"tallyroll/internal/limit"
	"tallyroll/internal/limit/counts"
	"tallyroll/internal/platform/buildinfo"
	"tallyroll/internal/platform/natsconn"
	"tallyroll/internal/platform/program"
	"tallyroll/internal/platform/release"
	"tallyroll/internal/query/answer"
	"tallyroll/internal/query/answer/scope"
	"tallyroll/internal/query/fresh"
	"tallyroll/internal/query/limitapi"
	"tallyroll/internal/query/live"
	"tallyroll/internal/query/status"
	"tallyroll/internal/web"
	"tallyroll/internal/web/access"
	"tallyroll/internal/window"
	"tallyroll/internal/window/erase"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"
)

// Run listens at once, even without Redis and NATS, and answers until ctx ends and SHUTDOWN_DELAY, when it is
// not ready any more, is over. It finishes the requests under way before it closes the connections to Redis.
// At each signal of reload, which may be nil, it rereads its files. The settings must have been validated.
func Run(ctx context.Context, settings Settings, log zerolog.Logger, reload <-chan os.Signal) error {
	ctx, leaving, stop := settings.Shutdown.Begin(ctx, log)
	defer stop()
	settings.Redis = settings.Redis.Logging(log)
	// Takes have connections of their own, so that questions that read much do not delay them.
	takeClient := settings.Redis.Client()
	defer takeClient.Close()
	takes := limit.New(takeClient, settings.Redis.Namespace, settings.TakeTimeout)
	defer takes.Wait() // they give shares back
	client := settings.Redis.Client()
	defer client.Close()
	store := schema.NewStore(client, settings.Redis.Namespace)
	requests := read.NewReader(store)
	requests.MaxCells, requests.MaxUniqueCells = settings.MaxCells, settings.MaxUniqueCells
	requests.MaxPoints = settings.MaxPoints
	listening := read.NewReader(store)
	s, err := newService(erase.Eraser{Reader: requests}, erase.Eraser{Reader: listening}, takes, settings, log)
	if err != nil {
		return err
	}
	s.server.Leaving = leaving
	var at *natsconn.Settings
	if settings.asksNATS() {
		at = &settings.NATS
	}
	counted := counts.New(settings.Counts, at, "tallyroll query", log, s.server.Metrics.Registry)
	takes.Counted = counted.Add
	defer counted.Start()()
	listeners, err := settings.Listen(s.server.Files)
	if err != nil {
		return err
	}
	log.Info().Str("version", release.Version()).Str("url", listeners.URL()).
		Str("redis", settings.Redis.URL.Addr()).Str("namespace", settings.Redis.Namespace).
		Int("tokens", s.middleware.tokens.Count()).Int("limits", s.limits.Named()).Msg("started")

	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.health.Run(gctx) })
	group.Go(func() error { return s.live.Run(gctx) })
	group.Go(func() error { return s.fresh.Run(gctx) })
	group.Go(func() error { return s.server.Files.Follow(gctx, reload) })
	if settings.asksNATS() {
		group.Go(func() error { return s.nats.serve(gctx, settings.NATS) })
	}
	group.Go(func() error { return s.server.Serve(gctx, listeners, s.handler()) })
	if err := group.Wait(); err != nil {
		return err
	}
	log.Info().Msg("stopped")
	return nil
}

type service struct {
	server     web.Server
	middleware middleware
	health     *status.Health
	questions  questions
	erasures   erasures
	exports    exports
	limits     *limitapi.Service
	live       *live.Live
	fresh      *fresh.Watcher
	status     *status.Status
	nats       natsAPI
	page       *page
}

// newService returns a service that answers requests from one reader, and the listeners at /v1/live from
// another, because the number of their questions bounds them, not the cost of one request. Its error is about
// the file of limits or of tokens. The caller must run health, live and fresh.
func newService(requests, listeners scope.Counters, takes limitapi.Limiter, settings Settings,
	log zerolog.Logger) (*service, error) {
	metrics := web.NewMetrics("query", 14)
	registry, failures := metrics.Registry, program.Sampled(log)
	files, namespace := buildinfo.NewFiles(registry, log), settings.Redis.Namespace
	s := &service{
		server: web.Server{Metrics: metrics, Files: files, Log: log, Apart: settings.MetricsAddr.Set()},
		health: status.NewHealth(requests, settings.Timeout, log, registry),
	}
	given := access.TokenSettings{Program: "QUERY", Plain: settings.Tokens, File: settings.TokensFile}
	tokens, err := access.New(given, files)
	if err != nil {
		return nil, err
	}
	redis, authorized := answer.NewSource(s.health, settings.Timeout, failures, registry), scope.Authorize(requests)
	answers := &answer.Service{
		Reader: authorized, Redis: redis, Namespace: namespace,
		MaxKeys: settings.MaxKeys, MaxSum: settings.MaxSum, MaxProbe: settings.MaxProbe,
	}
	audit := &auditLog{log: log}
	limits := limitapi.Settings{
		Take: settings.Take, File: settings.LimitsFile, Files: files,
		Proxies: settings.TrustedProxies, Audit: audit.begin,
	}
	s.limits, err = limitapi.New(limits, takes, authorized, redis, failures, metrics)
	if err != nil {
		return nil, err
	}
	s.status = status.New(requests, redis, namespace, settings.asksNATS(), failures, registry)
	bounds := live.Settings{
		MaxClients: settings.LiveClients, MaxQuestions: settings.LiveQuestions, MaxKeys: settings.MaxKeys,
	}
	listen := func(ctx context.Context, questions []window.Question) (window.Answers, error) {
		return answer.Read(ctx, redis, func(ctx context.Context) (window.Answers, error) {
			return listeners.Answer(ctx, questions)
		})
	}
	s.live = live.New(bounds, listen, registry)
	s.fresh = fresh.NewWatcher(func(ctx context.Context) (read.Reach, error) {
		return answer.Read(ctx, redis, requests.Progress)
	}, "query", registry)
	proxies := &s.limits.Proxies
	audit.proxies = proxies
	s.middleware = middleware{
		server: &s.server, tokens: tokens, origins: settings.Origins, hosts: settings.Hosts, proxies: proxies,
		bodies: web.BodyBudget(),
	}
	s.questions = questions{answers, s.status, s.limits}
	s.erasures = erasures{settings.Erase, answers, audit}
	s.exports.answers, s.exports.proxies, s.exports.log = answers, proxies, log
	s.exports.slots.most = settings.MaxExports
	up := buildinfo.NATSUp(registry)
	s.page = newPage(settings.Frames)
	s.nats = natsAPI{namespace, endpointsOf(&s.questions), s.status, s.fresh, metrics, up, log}
	return s, nil
}

func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	a := newAPI(mux, s.middleware.tokens)
	a.Hold = func(ctx context.Context, part string, params any) (context.Context, error) {
		return answer.Hold(ctx, s.fresh, part, params, nil)
	}
	a.Within(groupAsk)
	s.questions.register(a)
	s.erasures.register(a)
	s.exports.register(a)
	s.live.Register(a)
	a.Within(groupLimit)
	s.limits.Register(a, mux)
	a.Within(groupOperate)
	s.status.Register(a)
	a.DescribeStatus(statusPages(!s.server.Apart)...)
	a.RoutePages()

	s.server.RouteStatus(mux, func(context.Context) string { return s.whyNotReady() })
	s.server.Leaving.HandleReady(mux, "/readyz/answers", func(context.Context) string { return s.health.Why() })
	s.server.Leaving.HandleReady(mux, "/readyz/takes", func(context.Context) string { return s.whyNoTakes() })
	s.page.register(mux)
	registerSchemas(mux)
	return s.middleware.wrap(mux)
}

// whyNotReady returns why nothing can be served now. It is empty if anything can, because clients lose more
// if the process is taken out of service.
func (s *service) whyNotReady() string {
	why := s.health.Why()
	if why == "" || s.whyNoTakes() == "" {
		return ""
	}
	return why
}

func (s *service) whyNoTakes() string { return s.limits.Why(s.health.State()) }
