package main

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/gzhttp"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/rs/zerolog"

	"tallyroll/internal/boot"
	"tallyroll/internal/web"
	"tallyroll/internal/window"
)

// service is what the handlers share.
type service struct {
	server   web.Server
	settings Settings
	reader   *window.Reader
	engine   *promql.Engine
	gate     gate
	memory   memory
	unread   atomic.Int64 // bytes of answers that clients have not taken yet
	parser   parser.Parser
	failures zerolog.Logger // limited to a few lines per minute, because clients decide how often something fails
}

// failureLines is how many failed requests are logged per minute.
const failureLines = 5

// run listens at once, whether Redis answers or not, and answers until ctx ends and SHUTDOWN_DELAY is over, in which it
// is not ready any more. It finishes the requests under way before it closes the connections to Redis.
func run(ctx context.Context, settings Settings, log zerolog.Logger) error {
	ctx, leaving, stop := settings.Shutdown.Begin(ctx, log)
	defer stop()
	client := settings.Redis.Client()
	defer client.Close()
	s := newService(window.NewReader(window.NewStore(client, settings.Redis.Namespace)), settings, log)
	defer s.engine.Close()
	s.server.Leaving, s.memory = leaving, limitMemory(settings)
	listeners, err := settings.addresses().Listen(log, s.server.Metrics.Reloads)
	if err != nil {
		return err
	}
	log.Info().Str("version", boot.Version()).Str("redis", settings.Redis.URL.Addr()).Str("namespace", settings.Redis.Namespace).
		Bool("tokens", settings.Tokens.Required()).Int64("memory_limit", int64(s.memory)).Str("url", listeners.URL()).Msg("started")
	patient := func(srv *http.Server) { srv.WriteTimeout = settings.Timeout + 20*time.Second }
	if err := s.server.Serve(ctx, listeners, s.handler(), patient); err != nil {
		return err
	}
	log.Info().Msg("stopped")
	return nil
}

func newService(reader *window.Reader, settings Settings, log zerolog.Logger) *service {
	reader.MaxCells, reader.MaxPoints = settings.MaxCells, int64(settings.MaxSamples)
	p := parser.NewParser(parser.Options{})
	return &service{
		settings: settings, reader: reader, parser: p, gate: newGate(settings), memory: math.MaxInt64,
		server: web.Server{Metrics: web.NewMetrics("promql", 16), Log: log},
		engine: promql.NewEngine(promql.EngineOpts{
			Logger:     slog.New(slog.DiscardHandler), // what it logs are errors that it also returns
			MaxSamples: settings.MaxSamples,
			Timeout:    settings.Timeout, EnableAtModifier: true, EnableNegativeOffset: true,
			NoStepSubqueryIntervalFn: func(int64) int64 { return subqueryStep.Milliseconds() },
			Parser:                   p,
		}),
		failures: log.Sample(&zerolog.BurstSampler{Burst: failureLines, Period: time.Minute}),
	}
}

// handler is the whole service.
func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	for path, find := range map[string]finder{
		"/api/v1/query":       s.query,
		"/api/v1/query_range": s.queryRange,
		"/api/v1/labels":      s.labels,
		"/api/v1/series":      s.series,
	} {
		mux.Handle("GET "+path, s.answer(s.admit(find)))
		mux.Handle("POST "+path, s.answer(s.admit(find)))
	}
	mux.Handle("GET /api/v1/label/{name}/values", s.answer(s.admit(s.labelValues)))
	mux.Handle("GET /api/v1/metadata", s.answer(encoded(s.metadata)))
	mux.Handle("GET /api/v1/status/buildinfo", s.answer(encoded(s.buildInfo)))
	mux.Handle("/api/", s.answer(encoded(func(r *http.Request) (found, error) {
		return found{}, &apiError{http.StatusNotFound, "not_found", fmt.Sprintf("there is nothing for %s at %.64q: allowed are query, query_range, labels, label/<name>/values, series, metadata and status/buildinfo below /api/v1", r.Method, r.URL.Path)}
	})))

	s.server.RouteStatus(mux, func(ctx context.Context) string {
		if _, err := askRedis(ctx, s.reader.Look); err != nil {
			return err.Error()
		}
		return ""
	})
	return s.edge(mux)
}

// maxMessage bounds an error's message in bytes: the parser's own repeat parts of a query.
const maxMessage = 1000

// bounded cuts a message off.
func bounded(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxMessage], "") + "…"
}

// edge is what every request passes through: it checks the host and the token, and compresses.
func (s *service) edge(mux *http.ServeMux) http.Handler {
	compressed := gzhttp.GzipHandler(mux)
	return s.server.Edge(mux, func(w *web.Response, r *http.Request, _ string, _ http.Handler) {
		if strings.HasPrefix(r.URL.Path, "/api/") {
			w.Header().Set("Cache-Control", "no-store")
			if why := s.settings.Hosts.Refuse(r, "PROMQL_HOSTS"); why != "" && !s.settings.Tokens.Required() {
				writeError(w, &apiError{http.StatusForbidden, "forbidden", why})
				return
			}
			if !s.settings.Tokens.Admit(r) {
				w.Header().Set("WWW-Authenticate", "Bearer")
				writeError(w, &apiError{http.StatusUnauthorized, "unauthorized", "this call needs the header Authorization: Bearer with one of the tokens of PROMQL_TOKENS"})
				return
			}
			r.Body = http.MaxBytesReader(w.ResponseWriter, r.Body, s.settings.maxBody())
		}
		compressed.ServeHTTP(w, r)
	})
}

// maxBody bounds the form of a POST: a query of which each byte is written as %XX, and other parameters.
func (s *Settings) maxBody() int64 { return 3*int64(s.MaxQuery) + 64<<10 }
