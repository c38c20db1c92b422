package query

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"tallyroll/internal/boot"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
	"tallyroll/internal/window"
)

// service is what the handlers share.
type service struct {
	server    web.Server
	reader    reader
	now       func() time.Time
	namespace string
	maxKeys   int
	tokens    boot.Tokens
	origins   web.Origins
	hosts     boot.Hosts
	limits    *limits
	health    *health
	hub       *hub
	metrics   *metrics
	asksNATS  bool                                // there is a NATS, as far as the settings say
	js        atomic.Pointer[jetstream.JetStream] // nil while there is no connection yet
	streams   recent[streamsAnswer]
	log       zerolog.Logger
	failures  zerolog.Logger // limited to a few lines per minute, because clients decide how often something fails

	rejects    recent[newestRejects]
	maxProbe   int
	maxSum     int
	maxExplain int
}

// failureLines is how many failed questions are logged per minute: enough to
// see why they fail, however many clients ask.
const failureLines = 5

// newService makes a service that answers requests from one reader, and the listeners at /v1/live
// from another. The number of their questions bounds the listeners, not what one request
// may cost. The caller must run health.run and hub.run.
func newService(requests, live reader, limits *limits, settings Settings, log zerolog.Logger) *service {
	s := &service{
		reader: requests, health: newHealth(requests, log), metrics: newMetrics(), now: time.Now,
		namespace: settings.Redis.Namespace, maxKeys: settings.MaxKeys, tokens: settings.Tokens, origins: settings.Origins, hosts: settings.Hosts,
		limits: limits, asksNATS: settings.asksNATS(),
		log: log, failures: log.Sample(&zerolog.BurstSampler{Burst: failureLines, Period: time.Minute}),
	}
	s.maxProbe, s.maxSum = settings.MaxProbe, settings.MaxSum
	s.server = web.Server{Metrics: s.metrics.Metrics, Log: log, Apart: settings.MetricsAddr != ""}
	s.maxExplain = settings.MaxExplain
	s.metrics.registerClock(requests.ClockDifference)
	s.metrics.Registry.MustRegister(&freshness{service: s})
	s.hub = newHub(func(ctx context.Context, questions []window.Question) (window.Answers, error) {
		return askRedis(ctx, s, func(ctx context.Context) (window.Answers, error) { return live.Answer(ctx, questions) })
	}, settings.LiveClients, settings.LiveQuestions, s.metrics)
	return s
}

// handler is the whole service.
func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	s.routes(mux)
	return s.edge(mux)
}

func (s *service) routes(mux *http.ServeMux) {
	a := newAPI(mux, s.tokens.Required())
	s.registerTotal(a)
	s.registerSeries(a)
	s.registerLive(a)
	s.registerTop(a)
	s.registerCounters(a)
	s.registerAbout(a)
	s.registerTake(a)
	s.registerLimit(a)
	s.describeAuthz(a)
	s.registerStreams(a)
	s.registerRejects(a)
	s.registerProbe(a)
	a.DescribeStatus(statusPages(!s.server.Apart)...)

	mux.Handle(authzPath, api.Handler(s.getAuthz))
	mux.Handle(authzPath+"/{limit}", api.Handler(s.getAuthz))
	s.server.RouteStatus(mux, func(context.Context) string { return s.whyNotReady() })
	s.server.Leaving.HandleReady(mux, "/readyz/answers", func(context.Context) string { return s.health.whyNoAnswers() })
	s.server.Leaving.HandleReady(mux, "/readyz/takes", func(context.Context) string { return s.whyNoTakes() })
	newPage().register(mux)
	a.RoutePages(s.now)
}
