package query

import (
	"context"
	"net/http"
	"tallyroll/internal/answer"
	"tallyroll/internal/boot"
	"tallyroll/internal/gate"
	"tallyroll/internal/live"
	"tallyroll/internal/status"
	"tallyroll/internal/web"
	"tallyroll/internal/window"
	"time"

	"github.com/rs/zerolog"
)

// service is the rooms and what joins them: the edge and the page.
type service struct {
	server  web.Server
	tokens  boot.Tokens
	origins web.Origins
	hosts   boot.Hosts
	health  *status.Health
	answers *answer.Desk
	gate    *gate.Gate
	live    *live.Live
	status  *status.Status
	now     func() time.Time // for examples that depend on the time
	log     zerolog.Logger
}

// reader is what the rooms use of window.Reader.
type allReader interface {
	answer.Reader
	status.Looker
	gate.Counters
	status.Progress
}

// failureLines is how many failed questions are logged per minute: enough to
// see why they fail, however many clients ask.
const failureLines = 5

// newService makes a service that answers requests from one reader, and the listeners at /v1/live
// from another. The number of their questions bounds the listeners, not what one request
// may cost. Its error is about the file of limits. The caller must run health, gate and hub.
func newService(requests, listeners allReader, takes gate.Limiter, settings Settings, log zerolog.Logger) (*service, error) {
	metrics := web.NewMetrics("query", 14)
	registry, failures := metrics.Registry, log.Sample(&zerolog.BurstSampler{Burst: failureLines, Period: time.Minute})
	s := &service{
		server: web.Server{Metrics: metrics, Log: log, Apart: settings.MetricsAddr != ""},
		tokens: settings.Tokens, origins: settings.Origins, hosts: settings.Hosts,
		health: status.NewHealth(requests, log, registry), now: time.Now, log: log,
	}
	redis := answer.NewSource(s.health, failures, registry)
	s.answers = &answer.Desk{
		Reader: requests, Redis: redis, Namespace: settings.Redis.Namespace,
		MaxKeys: settings.MaxKeys, MaxSum: settings.MaxSum, MaxExplain: settings.MaxExplain, MaxProbe: settings.MaxProbe,
	}
	var err error
	s.gate, err = gate.New(gate.Settings{Take: settings.Take, File: settings.LimitsFile, Proxies: settings.TrustedProxies}, takes, requests, redis, failures, metrics)
	if err != nil {
		return nil, err
	}
	s.status = status.New(requests, redis, settings.Redis.Namespace, settings.asksNATS(), failures, registry)
	s.live = live.New(live.Settings{
		MaxClients: settings.LiveClients, MaxQuestions: settings.LiveQuestions, MaxKeys: settings.MaxKeys, Proxies: settings.TrustedProxies,
	}, func(ctx context.Context, questions []window.Question) (window.Answers, error) {
		return answer.Ask(ctx, redis, func(ctx context.Context) (window.Answers, error) { return listeners.Answer(ctx, questions) })
	}, registry)
	return s, nil
}

// handler is the whole service.
func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	s.routes(mux)
	return s.edge(mux)
}

func (s *service) routes(mux *http.ServeMux) {
	a := newAPI(mux, s.tokens.Required())
	s.registerAnswers(a)
	s.live.Register(a)
	s.gate.Register(a, mux)
	s.status.Register(a)
	a.DescribeStatus(statusPages(!s.server.Apart)...)
	a.RoutePages(s.now)

	s.server.RouteStatus(mux, func(context.Context) string { return s.whyNotReady() })
	s.server.Leaving.HandleReady(mux, "/readyz/answers", func(context.Context) string { return s.health.Why() })
	s.server.Leaving.HandleReady(mux, "/readyz/takes", func(context.Context) string { return s.whyNoTakes() })
	newPage().register(mux)
}

// whyNoTakes says why no take can be decided now. It is empty if one of them can.
func (s *service) whyNoTakes() string { return s.gate.Why(s.health.Look()) }

// whyNotReady says why nothing of what this service is for can be served now. It is empty if anything can: then a
// process that is taken out of service helps nobody.
func (s *service) whyNotReady() string {
	why := s.health.Why()
	if why == "" || s.whyNoTakes() == "" {
		return ""
	}
	return why
}
