package query

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"

	"tallyroll/internal/window"
)

// service is what the handlers share.
type service struct {
	reader   reader
	now      func() time.Time
	maxKeys  int
	tokens   Tokens
	origins  Origins
	health   *health
	hub      *hub
	metrics  *metrics
	log      zerolog.Logger
	failures zerolog.Logger // a few lines a minute: clients decide how often it is written to
}

// failureLines is how many failed questions are logged in a minute: enough to
// see why, however many clients ask.
const failureLines = 5

func newService(r reader, h *health, maxKeys int, tokens Tokens, log zerolog.Logger) *service {
	s := &service{
		reader: r, health: h, maxKeys: maxKeys, tokens: tokens, now: time.Now, metrics: newMetrics(), log: log,
		failures: log.Sample(&zerolog.BurstSampler{Burst: failureLines, Period: time.Minute}),
	}
	s.metrics.registerClock(r.ClockDifference)
	s.hub = newHub(s.metrics)
	s.hub.reader = r
	s.hub.read = func(ctx context.Context, questions []window.Question) (window.Answers, error) {
		return bounded(ctx, s, func(ctx context.Context) (window.Answers, error) { return s.hub.reader.Answer(ctx, questions) })
	}
	return s
}

// handler is the whole service.
func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	s.routes(mux)
	return s.edge(mux)
}

func (s *service) routes(mux *http.ServeMux) {
	api := humago.New(mux, apiConfig(s.tokens.required()))
	api.UseMiddleware(strictParams(api))
	s.registerTotal(api)
	s.registerSeries(api)
	s.registerLive(api)
	s.registerTop(api)
	s.registerCounters(api)
	describeStatus(api.OpenAPI())

	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if why := s.health.notReady(); why != "" {
			http.Error(w, why, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{}))
	mux.Handle("GET /openapi.json", serveOpenAPI(api.OpenAPI().MarshalJSON))
	mux.Handle("GET /openapi-3.0.json", serveOpenAPI(func() ([]byte, error) { return openAPI30(api.OpenAPI()) }))
	mux.Handle("GET /{$}", http.RedirectHandler("/docs", http.StatusFound))
	mux.Handle("GET /docs", serveDocs(api.OpenAPI(), s.tokens.required(), s.now))
}

// operation fills in what all operations have in common.
func (s *service) operation(api huma.API, op huma.Operation) huma.Operation {
	// Query strings and bodies are checked by strictParams, decodeBody and the
	// operation itself, whose errors name what is allowed; edge has read the body.
	op.SkipValidateParams, op.SkipValidateBody = true, true
	op.BodyReadTimeout, op.MaxBodyBytes = -1, -1
	describeProblems(api.OpenAPI().Components.Schemas, &op, s.tokens.required())
	return op
}
