package query

import (
	"context"
	"net/http"
	"os"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"tallyroll/internal/access"
	"tallyroll/internal/answer"
	"tallyroll/internal/buildinfo"
	"tallyroll/internal/gate"
	"tallyroll/internal/limit"
	"tallyroll/internal/live"
	"tallyroll/internal/program"
	"tallyroll/internal/release"
	"tallyroll/internal/status"
	"tallyroll/internal/web"
	"tallyroll/internal/window"
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
	store := window.NewStore(client, settings.Redis.Namespace)
	requests := window.NewReader(store)
	requests.MaxCells, requests.MaxPoints, requests.MaxUniqueCells = settings.MaxCells, settings.MaxPoints, settings.MaxUniqueCells
	s, err := newService(window.Eraser{Reader: requests}, window.Eraser{Reader: window.NewReader(store)}, takes, settings, log)
	if err != nil {
		return err
	}
	s.server.Leaving = leaving
	listeners, err := settings.addresses().Listen(s.server.Files)
	if err != nil {
		return err
	}
	log.Info().Str("version", release.Version()).Str("redis", settings.Redis.URL.Addr()).Str("namespace", settings.Redis.Namespace).
		Int("tokens", s.tokens.Count()).Int("limits", s.gate.Named()).Str("url", listeners.URL()).Msg("started")

	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.health.Run(gctx) })
	group.Go(func() error { return s.live.Run(gctx) })
	group.Go(func() error { return s.server.Files.Follow(gctx, reload) })
	if settings.asksNATS() {
		group.Go(func() error {
			return s.serveNATS(gctx, settings.natsAt(), settings.Redis.Namespace)
		})
	}
	group.Go(func() error { return s.server.Serve(gctx, listeners, s.handler()) })
	if err := group.Wait(); err != nil {
		return err
	}
	log.Info().Msg("stopped")
	return nil
}

type service struct {
	server  web.Server
	tokens  *access.Tokens
	origins web.Origins
	hosts   web.Hosts
	health  *status.Health
	answers *answer.Desk
	gate    *gate.Gate
	live    *live.Live
	status  *status.Status
	exports exports
	erases  Erasing
	log     zerolog.Logger
}

// newService returns a service that answers requests from one reader, and the listeners at /v1/live from
// another, because the number of their questions bounds them, not the cost of one request. Its error is about
// the file of limits or of tokens. The caller must run health, gate and hub.
func newService(requests, listeners access.Counters, takes gate.Limiter, settings Settings, log zerolog.Logger) (*service, error) {
	metrics := web.NewMetrics("query", 14)
	registry, failures := metrics.Registry, program.Sampled(log)
	s := &service{
		server:  web.Server{Metrics: metrics, Files: buildinfo.NewFiles(registry, log), Log: log, Apart: settings.MetricsAddr != ""},
		origins: settings.Origins, hosts: settings.Hosts,
		health: status.NewHealth(requests, settings.Timeout, log, registry), log: log,
	}
	var err error
	s.tokens, err = access.New(access.Settings{Program: "QUERY", Plain: settings.Tokens, File: settings.TokensFile}, s.server.Files)
	if err != nil {
		return nil, err
	}
	redis := answer.NewSource(s.health, settings.Timeout, failures, registry)
	s.answers = &answer.Desk{
		Reader: access.NewReader(requests), Redis: redis, Namespace: settings.Redis.Namespace,
		MaxKeys: settings.MaxKeys, MaxSum: settings.MaxSum, MaxProbe: settings.MaxProbe,
	}
	s.exports.most, s.erases = settings.MaxExports, settings.Erase
	s.gate, err = gate.New(gate.Settings{Take: settings.Take, File: settings.LimitsFile, Files: s.server.Files, Proxies: settings.TrustedProxies, Audit: s.audit}, takes, access.NewReader(requests), redis, failures, metrics)
	if err != nil {
		return nil, err
	}
	s.status = status.New(requests, redis, settings.Redis.Namespace, settings.asksNATS(), failures, registry)
	s.live = live.New(live.Settings{
		MaxClients: settings.LiveClients, MaxQuestions: settings.LiveQuestions, MaxKeys: settings.MaxKeys,
	}, func(ctx context.Context, questions []window.Question) (window.Answers, error) {
		return answer.Ask(ctx, redis, func(ctx context.Context) (window.Answers, error) { return listeners.Answer(ctx, questions) })
	}, registry)
	return s, nil
}

func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	s.routes(mux)
	return s.edge(mux)
}

func (s *service) routes(mux *http.ServeMux) {
	a := newAPI(mux, s.tokens)
	a.Within(groupAsk)
	s.registerAnswers(a)
	s.live.Register(a)
	a.Within(groupLimit)
	s.gate.Register(a, mux)
	a.Within(groupOperate)
	s.status.Register(a)
	a.DescribeStatus(statusPages(!s.server.Apart)...)
	a.RoutePages()

	s.server.RouteStatus(mux, func(context.Context) string { return s.whyNotReady() })
	s.server.Leaving.HandleReady(mux, "/readyz/answers", func(context.Context) string { return s.health.Why() })
	s.server.Leaving.HandleReady(mux, "/readyz/takes", func(context.Context) string { return s.whyNoTakes() })
	newPage().register(mux)
}

// whyNotReady returns why nothing can be served now. If anything can, it is empty: to take it out of service
// would help nobody.
func (s *service) whyNotReady() string {
	why := s.health.Why()
	if why == "" || s.whyNoTakes() == "" {
		return ""
	}
	return why
}

func (s *service) whyNoTakes() string { return s.gate.Why(s.health.Look()) }
