package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/klauspost/compress/gzhttp"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"tallyroll/internal/platform/buildinfo"
	"tallyroll/internal/platform/program"
	"tallyroll/internal/platform/redisconn"
	"tallyroll/internal/platform/release"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/query/answer/scope"
	"tallyroll/internal/query/fresh"
	"tallyroll/internal/web"
	"tallyroll/internal/web/access"
	"tallyroll/internal/window/erase"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"
)

type service struct {
	server   web.Server
	settings Settings
	reader   *read.Reader     // of the layout and the clock
	counters scope.Authorized // of everything about counters
	tokens   *access.Tokens
	engine   *promql.Engine
	limiter  requestLimiter
	fresh    *fresh.Watcher
	memory   memoryLimit
	bodies   *web.Budget
	parser   parser.Parser
	failures zerolog.Logger // program.Sampled
}

// run listens at once, even without Redis, and answers until ctx ends and SHUTDOWN_DELAY, during which it is
// not ready, is over. It finishes current requests before it closes the connections to Redis. At each signal
// of reload it rereads its files.
func run(ctx context.Context, settings Settings, log zerolog.Logger, reload <-chan os.Signal) error {
	ctx, leaving, stop := settings.Shutdown.Begin(ctx, log)
	defer stop()
	client := settings.Redis.Logging(log).Client()
	defer client.Close()
	s, err := newService(read.NewReader(schema.NewStore(client, settings.Redis.Namespace)), settings, log)
	if err != nil {
		return err
	}
	defer s.engine.Close()
	s.server.Leaving, s.memory = leaving, setMemoryLimit(settings)
	listeners, err := settings.Listen(s.server.Files)
	if err != nil {
		return err
	}
	log.Info().Str("version", release.Version()).Str("redis", settings.Redis.URL.Addr()).
		Str("namespace", settings.Redis.Namespace).Int("tokens", s.tokens.Count()).
		Int64("memory_limit", int64(s.memory)).Str("url", listeners.URL()).Msg("started")
	setWriteTimeout := func(srv *http.Server) { srv.WriteTimeout = settings.Timeout + 20*time.Second }
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.server.Files.Follow(gctx, reload) })
	group.Go(func() error { return s.fresh.Run(gctx) })
	group.Go(func() error { return s.server.Serve(gctx, listeners, s.handler(), setWriteTimeout) })
	if err := group.Wait(); err != nil {
		return err
	}
	log.Info().Msg("stopped")
	return nil
}

// newService returns an error if the file of tokens is wrong.
func newService(reader *read.Reader, settings Settings, log zerolog.Logger) (*service, error) {
	metrics := web.NewMetrics("promql", 16)
	files := buildinfo.NewFiles(metrics.Registry, log)
	tokens, err := access.New(access.TokenSettings{Program: "PROMQL", Plain: settings.Tokens,
		File: settings.TokensFile}, files)
	if err != nil {
		return nil, err
	}
	reader.MaxCells, reader.MaxUniqueCells = settings.MaxCells, settings.MaxUniqueCells
	reader.MaxPoints = int64(settings.MaxSamples)
	p := parser.NewParser(parser.Options{})
	return &service{
		settings: settings, reader: reader, counters: scope.Authorize(erase.Eraser{Reader: reader}), tokens: tokens,
		parser: p, limiter: newRequestLimiter(settings), memory: math.MaxInt64,
		bodies: web.BodyBudget(),
		server: web.Server{Metrics: metrics, Files: files, Log: log, Apart: settings.MetricsAddr.Set()},
		engine: promql.NewEngine(promql.EngineOpts{
			Logger:     slog.New(slog.DiscardHandler), // it only logs errors that it also returns
			MaxSamples: settings.MaxSamples,
			Timeout:    settings.Timeout, EnableAtModifier: true, EnableNegativeOffset: true,
			NoStepSubqueryIntervalFn: func(int64) int64 { return subqueryStep.Milliseconds() },
			Parser:                   p,
		}),
		failures: program.Sampled(log),
		fresh: fresh.NewWatcher(func(ctx context.Context) (read.Reach, error) {
			return readRedis(ctx, reader.Progress)
		}, "promql", metrics.Registry),
	}, nil
}

func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	for path, find := range map[string]queryFunc{
		"/api/v1/query":       s.query,
		"/api/v1/query_range": s.queryRange,
		"/api/v1/labels":      s.labels,
		"/api/v1/series":      s.series,
	} {
		mux.Handle("GET "+path, s.serve(s.limitRequests(find)))
		mux.Handle("POST "+path, s.serve(s.limitRequests(find)))
	}
	mux.Handle("GET /api/v1/label/{name}/values", s.serve(s.limitRequests(s.labelValues)))
	mux.Handle("GET /api/v1/metadata", s.serve(encodeResult(metadata)))
	mux.Handle("GET /api/v1/status/buildinfo", s.serve(encodeResult(buildInfo)))
	mux.Handle("/api/", s.serve(encodeResult(func(r *http.Request) (result, error) {
		return result{}, &apiError{http.StatusNotFound, "not_found",
			fmt.Sprintf("no resource for %s at %.64q: must be query, query_range, labels, label/<name>/values, "+
				"series, metadata or status/buildinfo below /api/v1", r.Method, r.URL.Path)}
	})))

	s.server.RouteStatus(mux, func(ctx context.Context) string {
		if _, err := readRedis(ctx, s.reader.Look); err != nil {
			return err.Error()
		}
		return ""
	})
	return s.addMiddleware(mux)
}

// maxMessage bounds an error's message in bytes, because the parser's messages repeat parts of a query.
const maxMessage = 1000

func truncateMessage(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxMessage], "") + "…"
}

// addMiddleware adds middleware to every request: it checks the host and the token, and compresses answers.
func (s *service) addMiddleware(mux *http.ServeMux) http.Handler {
	compressed := gzhttp.GzipHandler(mux)
	return s.server.Wrap(mux, func(w *web.Response, r *http.Request, _ string, _ http.Handler) {
		if strings.HasPrefix(r.URL.Path, "/api/") {
			w.Header().Set("Cache-Control", "no-store")
			if why := s.settings.Hosts.Refuse(r, "PROMQL_HOSTS"); why != "" && !s.tokens.Required() {
				writeError(w, &apiError{http.StatusForbidden, "forbidden", why})
				return
			}
			token, p := s.tokens.Find(r)
			if p != nil {
				w.Header().Set("WWW-Authenticate", "Bearer")
				writeError(w, &apiError{p.Status, "unauthorized", p.Detail})
				return
			}
			if err := token.Require(access.Read, "promql"); err != nil {
				writeError(w, s.asAPIError(asForbidden(err)))
				return
			}
			r = r.WithContext(access.With(r.Context(), token))
			if r.Method == http.MethodPost {
				// before the limiter, so that a slow client needs no slot of it
				body, err := s.bodies.ReadBody(w, r, s.settings.maxBody())
				if err != nil {
					writeError(w, s.formError(err))
					return
				}
				defer body.Close()
				r.Body = http.MaxBytesReader(w, body, s.settings.maxBody()) // else ParseForm has a bound of its own
			}
		}
		compressed.ServeHTTP(w, r)
	})
}

func (s *service) formError(err error) *apiError {
	switch {
	case errors.Is(err, web.ErrLarge):
		return &apiError{http.StatusRequestEntityTooLarge, "bad_data",
			fmt.Sprintf("the form is too large: at most %d bytes are allowed", s.settings.maxBody())}
	case errors.Is(err, web.ErrNoRoom):
		return newUnavailable("too many forms are under way: retry in a second")
	}
	return newBadData("the form cannot be read: %v", err)
}

// maxBody bounds a POST's form in bytes: a query with each byte written as %XX, and other parameters.
func (s *Settings) maxBody() int64 { return 3*int64(s.MaxQuery) + 64<<10 }

// Settings of the program. --help prints their tags.
type Settings struct {
	Redis    redisconn.Settings
	Log      program.Log
	Shutdown web.Shutdown

	web.Addresses `envPrefix:"PROMQL_" ADDR.default:"127.0.0.1:9091"`

	Hosts      web.Hosts      `env:"PROMQL_HOSTS" help:"public host names that requests may use, comma-separated, such as promql.example.com; * allows any; addresses, names of one part and private names such as *.internal are always allowed, and nothing is checked with tokens or over HTTPS"`
	Tokens     setting.Tokens `env:"PROMQL_TOKENS" secret:"true" help:"bearer tokens, comma-separated, for all counters; if set, every /api call needs one of them or of PROMQL_TOKENS_FILE"`
	TokensFile string         `env:"PROMQL_TOKENS_FILE" help:"a YAML file of further bearer tokens with the right read, in the form of QUERY_TOKENS_FILE; it is read again when it changes and at SIGHUP"`

	MaxCounters    int           `env:"PROMQL_MAX_COUNTERS" envDefault:"10000" help:"most counters that the selectors of one query together may read or scan; each costs up to two hash reads per selector and tier with the default tiers"`
	MaxCells       int64         `env:"PROMQL_MAX_CELLS" envDefault:"2000000" help:"most cells that the hashes read for one selector can hold; a million filled cells take about half a second and 110 MB while a query is answered"`
	MaxUniqueCells int64         `env:"PROMQL_MAX_UNIQUE_CELLS" envDefault:"100000" help:"most cells of uniques read for one selector; a cell of 2,000 unique values or more costs Redis 39 µs at its first read after a change, and then 1 µs"`
	MaxSamples     int           `env:"PROMQL_MAX_SAMPLES" envDefault:"1000000" help:"most samples that one query may read or hold at a time, and most steps of a subquery"`
	Timeout        time.Duration `env:"PROMQL_TIMEOUT" envDefault:"10s" help:"longest time that a query or a list may take, its wait for others included"`
	Concurrency    int           `env:"PROMQL_CONCURRENCY" envDefault:"4" help:"most queries and lists that run at a time; others wait"`

	MaxQuery    int    `env:"PROMQL_MAX_QUERY_BYTES" envDefault:"65536" help:"most bytes of a query, and of all match[] of a request together"`
	MaxRequests int    `env:"PROMQL_MAX_REQUESTS" envDefault:"200" help:"most requests at a time, those that wait included; more are answered 503"`
	Memory      string `env:"GOMEMLIMIT" help:"most memory of the process, in Go's form, such as 900MiB; if not set, 256 MiB and the need of PROMQL_CONCURRENCY queries; queries that need more are ended"`
}

// maxTimeout bounds PROMQL_TIMEOUT, because no one waits longer for a panel.
const maxTimeout = 10 * time.Minute

func (s *Settings) Validate() error {
	err := setting.CheckMost(setting.Most{Key: "PROMQL_MAX_COUNTERS", N: int64(s.MaxCounters)},
		setting.Most{Key: "PROMQL_MAX_CELLS", N: s.MaxCells}, setting.Most{Key: "PROMQL_MAX_UNIQUE_CELLS",
			N: s.MaxUniqueCells},
		setting.Most{Key: "PROMQL_MAX_SAMPLES", N: int64(s.MaxSamples)},
		setting.Most{Key: "PROMQL_CONCURRENCY", N: int64(s.Concurrency)},
		setting.Most{Key: "PROMQL_MAX_QUERY_BYTES", N: int64(s.MaxQuery)}, setting.Most{Key: "PROMQL_MAX_REQUESTS",
			N: int64(s.MaxRequests)})
	if err != nil {
		return err
	}
	if s.Timeout < time.Millisecond || s.Timeout > maxTimeout {
		return &setting.Error{Key: "PROMQL_TIMEOUT", Value: s.Timeout.String(), MustBe: "a duration from 1ms to " +
			maxTimeout.String()}
	}
	return nil
}
