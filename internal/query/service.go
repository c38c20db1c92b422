package query

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"tallyroll/internal/boot"
	"tallyroll/internal/web"
	"tallyroll/internal/window"
)

// service is what the handlers share.
type service struct {
	reader    reader
	now       func() time.Time
	namespace string
	maxKeys   int
	tokens    boot.Tokens
	origins   web.Origins
	hosts     boot.Hosts
	limits    *limits
	health    *health
	leaving   boot.Leaving
	hub       *hub
	metrics   *metrics
	asksNATS  bool                                // there is a NATS, as far as the settings say
	js        atomic.Pointer[jetstream.JetStream] // nil while there is no connection yet
	streams   recent[streamsAnswer]
	log       zerolog.Logger
	failures  zerolog.Logger // limited to a few lines per minute, because clients decide how often something fails

	rejects      recent[newestRejects]
	maxProbe     int
	maxSum       int
	maxExplain   int
	metricsApart bool // QUERY_METRICS_ADDR is set
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
	s.maxProbe, s.maxSum, s.metricsApart = settings.MaxProbe, settings.MaxSum, settings.MetricsAddr != ""
	s.maxExplain = settings.MaxExplain
	s.metrics.registerClock(requests.ClockDifference)
	s.metrics.registry.MustRegister(&freshness{service: s})
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
	api := newAPI(mux, s.tokens.Required())
	s.registerTotal(api)
	s.registerSeries(api)
	s.registerLive(api)
	s.registerTop(api)
	s.registerCounters(api)
	s.registerAbout(api)
	s.registerTake(api)
	s.registerLimit(api)
	s.describeAuthz(api)
	s.registerStreams(api)
	s.registerRejects(api)
	s.registerProbe(api)
	describeStatus(api.OpenAPI())

	mux.Handle(authzPath, handler(s.getAuthz))
	mux.Handle(authzPath+"/{limit}", handler(s.getAuthz))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	s.leaving.HandleReady(mux, "/readyz", func(context.Context) string { return s.whyNotReady() })
	s.leaving.HandleReady(mux, "/readyz/answers", func(context.Context) string { return s.health.whyNoAnswers() })
	s.leaving.HandleReady(mux, "/readyz/takes", func(context.Context) string { return s.whyNoTakes() })
	s.routeMetrics(mux, api.OpenAPI())
	mux.Handle("GET /openapi.json", web.ServeOpenAPI(api.OpenAPI().MarshalJSON))
	mux.Handle("GET /openapi-3.0.json", web.ServeOpenAPI(func() ([]byte, error) { return web.OpenAPI30(api.OpenAPI()) }))
	newPage().register(mux)
	mux.Handle("GET /docs", web.ServeDocs(api.OpenAPI(), s.tokens.Required(), s.now))
}

// operation fills in what all operations have in common.
func (s *service) operation(api huma.API, op huma.Operation) huma.Operation {
	describeProblems(api.OpenAPI().Components.Schemas, &op, s.tokens.Required())
	return op
}
