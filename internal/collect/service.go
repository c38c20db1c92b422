package collect

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"tallyroll/internal/web"
)

// service is what the handlers share.
type service struct {
	server    web.Server
	settings  Settings
	gate      gate
	tokens    *tokens
	unpacker  *unpacker
	target    *target
	js        atomic.Pointer[jetstream.JetStream] // nil while there is no connection yet
	publisher atomic.Pointer[publisher]           // nil while there is no connection yet
	metrics   *metrics
	log       zerolog.Logger
	failures  zerolog.Logger // limited to a few lines per minute, because clients decide how often something fails
}

// failureLines is how many failed requests are logged per minute.
const failureLines = 5

func newService(settings Settings, log zerolog.Logger) (*service, error) {
	s := &service{settings: settings, target: newTarget(settings.Subject, log), log: log,
		failures: log.Sample(&zerolog.BurstSampler{Burst: failureLines, Period: time.Minute})}
	s.gate.maxRequests, s.gate.maxBytes = int64(settings.MaxRequests), settings.MaxWaiting
	s.metrics = newMetrics(&s.gate)
	s.server = web.Server{Metrics: s.metrics.Metrics, Log: log, Apart: settings.MetricsAddr != ""}
	var err error
	s.tokens, err = newTokens(settings.TokensFile, log)
	if err != nil {
		return nil, err
	}
	if s.tokens.required() {
		s.tokens.reloaded = s.metrics.Reloads.Of("tokens")
	}
	s.unpacker, err = newUnpacker(settings.MaxBody)
	return s, err
}

// handler is the whole service.
func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	s.routes(mux)
	return s.edge(mux)
}

func (s *service) routes(mux *http.ServeMux) {
	mux.HandleFunc("POST "+hitsPath, s.serveHits)
	mux.HandleFunc("OPTIONS "+hitsPath, s.serveHandshake)
	s.routePages(mux)
	s.server.RouteStatus(mux, func(context.Context) string { return s.target.whyNotReady(s.conn()) })
	s.describe(mux).RoutePages(time.Now)
	mux.Handle("GET /{$}", http.RedirectHandler("/docs", http.StatusFound))
}

// conn is the connection to NATS; nil while there is none yet.
func (s *service) conn() *nats.Conn {
	js := s.js.Load()
	if js == nil {
		return nil
	}
	return (*js).Conn()
}
