package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"tallyroll/internal/limit"
	"tallyroll/internal/limit/counts"
	"tallyroll/internal/limit/limitfile"
	"tallyroll/internal/platform/buildinfo"
	"tallyroll/internal/platform/natsconn"
	"tallyroll/internal/platform/program"
	"tallyroll/internal/platform/redisconn"
	"tallyroll/internal/platform/release"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/web"
)

// Settings of the program. --help prints their tags.
type Settings struct {
	Redis    redisconn.Settings
	NATS     natsconn.Settings
	Counts   counts.Settings
	Log      program.Log
	Shutdown web.Shutdown

	MetricsAddr web.Address `env:"RLS_METRICS_ADDR" envDefault:"127.0.0.1:8084" help:"where plain HTTP listens, host:port, with /healthz, /readyz, /metrics and Go's profiles (/debug/pprof/)"`
	Addr        web.Address `env:"RLS_ADDR" envDefault:"127.0.0.1:8083" help:"where gRPC listens, host:port: the rate limit service of Envoy, and gRPC's health service"`
	LimitsFile  string      `env:"RLS_LIMITS_FILE" help:"the YAML file of limits, which can be that of QUERY_LIMITS_FILE: those with envoy: are for descriptors of Envoy; it is read again when it changes and at SIGHUP"`

	TakeTimeout time.Duration `env:"RLS_TAKE_TIMEOUT" envDefault:"500ms" help:"how long a decision waits for Redis, 1ms to 5s, before the limit's fail mode decides; let Envoy wait longer (timeout of its filter, 20ms by default), or its own failure mode decides"`
	Headers     bool          `env:"RLS_HEADERS" envDefault:"true" help:"whether Envoy adds RateLimit-Policy, RateLimit and, to a refusal, Retry-After to its answers"`

	TLS web.TLS `envPrefix:"RLS_" TLS_CERT.help:"a certificate file (PEM, chain included): serve gRPC over TLS, with {}TLS_KEY; both files are read again when they change" TLS_CLIENT_CA.help:"a file of authorities (PEM): clients need a certificate that one of them has signed; needs {}TLS_CERT; read again when it changes"`

	MaxConnections  int `env:"RLS_MAX_CONNECTIONS" envDefault:"1000" help:"most connections at a time; more wait"`
	MaxStreams      int `env:"RLS_MAX_STREAMS" envDefault:"1000" help:"most requests at a time on one connection; Envoy keeps more back, or opens another connection"`
	MaxMessageBytes int `env:"RLS_MAX_MESSAGE_BYTES" envDefault:"262144" help:"most bytes of one request, up to 8388608; a larger one gets RESOURCE_EXHAUSTED, so let all headers that Envoy may put into it have room; 512 MiB of requests may arrive at a time"`
}

// maxMaxMessage is the most that Envoy lets a request's headers have.
const maxMaxMessage = 8 << 20

const minTakeTimeout, maxTakeTimeout = time.Millisecond, 5 * time.Second

func (s *Settings) Validate() error {
	if s.LimitsFile == "" {
		return &setting.Error{Key: "RLS_LIMITS_FILE", MustBe: "a YAML file of limits (docs/limits.md): without " +
			"limits there is nothing to decide"}
	}
	if s.TakeTimeout < minTakeTimeout || s.TakeTimeout > maxTakeTimeout {
		return &setting.Error{Key: "RLS_TAKE_TIMEOUT", Value: s.TakeTimeout.String(),
			MustBe: fmt.Sprintf("a duration from %v to %v", minTakeTimeout, maxTakeTimeout)}
	}
	if s.MaxMessageBytes < 1 || s.MaxMessageBytes > maxMaxMessage {
		return &setting.Error{Key: "RLS_MAX_MESSAGE_BYTES", Value: strconv.Itoa(s.MaxMessageBytes),
			MustBe: fmt.Sprintf("a whole number from 1 to %d", maxMaxMessage)}
	}
	return setting.CheckMost(setting.Most{Key: "RLS_MAX_CONNECTIONS", N: int64(s.MaxConnections)},
		setting.Most{Key: "RLS_MAX_STREAMS", N: int64(s.MaxStreams)})
}

type limiter interface {
	Take(ctx context.Context, takes []limit.Take) (limit.Answer, error)
	Look(ctx context.Context, takes []limit.Take) (limit.Answer, error)
	Settle(ctx context.Context, takes []limit.Take) (limit.Answer, error)
}

type service struct {
	rls.UnimplementedRateLimitServiceServer

	server   web.Server // of the address for metrics
	settings Settings
	budget   *web.Budget
	// arriveWithin is messageTimeout; tests change it.
	arriveWithin time.Duration
	limiter      limiter
	counted      func(counters limit.CounterNames, limit, key string, n int64) // counts hits
	mapping      *setting.File[*mapping]
	health       *health
	log          zerolog.Logger
	failures     zerolog.Logger // program.Sampled

	decisions   *prometheus.CounterVec
	settlements *prometheus.CounterVec
	unmatched   prometheus.Counter
}

// run listens at once, even without Redis, and answers until ctx has ended and SHUTDOWN_DELAY, during which
// it is not ready, is over. It finishes the requests under way before it closes the connections to Redis. At
// each signal of reload it rereads its files.
func run(ctx context.Context, settings Settings, log zerolog.Logger, reload <-chan os.Signal) error {
	ctx, leaving, stop := settings.Shutdown.Begin(ctx, log)
	defer stop()
	quietGRPC(log)
	settings.Redis = settings.Redis.Logging(log)
	client := settings.Redis.Client()
	defer client.Close()
	takes := limit.New(client, settings.Redis.Namespace, settings.TakeTimeout)
	defer takes.Wait() // it gives shares back
	looks := settings.Redis.Client()
	defer looks.Close()
	s, err := newService(takes, settings, log)
	if err != nil {
		return err
	}
	s.server.Leaving = leaving
	counted := counts.New(settings.Counts, &settings.NATS, "tallyroll rls", log, s.server.Metrics.Registry)
	takes.Counted, s.counted = counted.Add, counted.Add
	defer counted.Start()()
	s.health = newHealth(func(ctx context.Context) error { return looks.Ping(ctx).Err() }, s.why)
	listeners, err := web.Addresses{Addr: settings.Addr, TLS: settings.TLS}.Listen(s.server.Files)
	if err != nil {
		return err
	}
	status, err := web.Addresses{Addr: settings.MetricsAddr}.Listen(s.server.Files)
	if err != nil {
		return errors.Join(err, listeners.Main.Close())
	}
	log.Info().Str("version", release.Version()).Str("redis", settings.Redis.URL.Addr()).
		Str("namespace", settings.Redis.Namespace).Int("limits", s.mapping.Load().limits).
		Str("grpc", listeners.Main.Addr().String()).Bool("tls", listeners.Certificate != nil).
		Str("url", status.URL()).Msg("started")
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.server.Files.Follow(gctx, reload) })
	group.Go(func() error { s.health.run(gctx, leaving); return nil })
	group.Go(func() error { return s.serve(gctx, listeners) })
	group.Go(func() error { return s.server.Serve(gctx, status, s.pages()) })
	if err := group.Wait(); err != nil {
		return err
	}
	log.Info().Msg("stopped")
	return nil
}

// newService reads the file of limits. Its error names the file and the line.
func newService(takes limiter, settings Settings, log zerolog.Logger) (*service, error) {
	metrics := web.NewMetrics("rls", 14)
	s := &service{
		server:   web.Server{Metrics: metrics, Files: buildinfo.NewFiles(metrics.Registry, log), Log: log},
		settings: settings, budget: web.NewBudget(maxRequests, maxArriving), arriveWithin: messageTimeout,
		limiter: takes, log: log, failures: program.Sampled(log),
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "tallyroll", Subsystem: "limit", Name: "decisions_total",
			Help: "Takes by result, limit (empty: numbers in the request) and source of the decision. The result " +
				"canceled is of takes for which Envoy did not wait.",
		}, []string{"limit", "result", "source"}),
		settlements: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "tallyroll", Subsystem: "limit", Name: "settlements_total",
			Help: "Settlements of takes by limit and result: settled, uncounted (a limit in shadow mode did not " +
				"count the take, or is open without Redis), unknown (the number counts up to the limit), canceled " +
				"(Envoy did not wait), or refused (Redis does not answer, and the take stays as it was).",
		}, []string{"limit", "result"}),
		unmatched: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "tallyroll", Subsystem: "rls", Name: "unmatched_descriptors_total",
			Help: "Descriptors that match no limit, and were let through.",
		}),
	}
	metrics.Registry.MustRegister(s.decisions, s.settlements, s.unmatched)
	var err error
	s.mapping, err = setting.Open(s.server.Files, "limits",
		setting.Path{Key: "RLS_LIMITS_FILE", File: settings.LimitsFile}, parseLimits, s.logMapping)
	return s, err
}

func parseLimits(text []byte) (*mapping, error) {
	set, err := limitfile.Parse(text)
	if err != nil {
		return nil, err
	}
	return newMapping(set), nil
}

func (s *service) logMapping(m *mapping, line *zerolog.Event) {
	line.Int("limits", m.limits)
	if m.limits == 0 {
		s.log.Warn().Str("file", s.settings.LimitsFile).Msg("no limit of the file has envoy: every request is " +
			"let through")
	}
	for _, wide := range m.wide {
		s.log.Warn().Str("file", s.settings.LimitsFile).Str("domain", wide.name).Strs("limits", wide.limits).
			Msgf("one request can ask about more than %d of these limits: Redis then decides in several steps "+
				"(docs/limits.md)", limit.MaxTogether)
	}
}

func (s *service) pages() http.Handler {
	mux := http.NewServeMux()
	s.server.RouteStatus(mux, func(context.Context) string { return s.why() })
	buildinfo.RouteProfiles(mux)
	return mux
}

// why returns why no request can be decided now. Without Redis, those of limits that are not closed can.
func (s *service) why() string {
	m := s.mapping.Load()
	looked, lost := s.health.redis()
	switch {
	case m.limits == 0:
		return "no limit of RLS_LIMITS_FILE has envoy, so there is nothing to decide"
	case !looked:
		return "Redis has not answered yet" // a process that starts is not ready before it has looked once
	case lost && m.closed:
		return "Redis does not answer, and every limit is closed then"
	}
	return ""
}

func (s *service) count(a *envoyRequest, v *verdict) {
	for i, d := range v.decisions {
		if d != nil && !a.kinds[i].happened {
			s.countDecision(d)
		}
	}
}

func (s *service) countDecision(d *limit.Decision) {
	result := "refused"
	switch {
	case d.Take.N < 0:
		result = "returned"
	case d.Allowed:
		result = "allowed"
	}
	s.decisions.WithLabelValues(d.Take.Limit.Name, result, string(d.Source)).Inc()
}

func (s *service) countErrors(takes []limit.Take, err error) {
	result := "error"
	if isEnvoyGone(err) {
		result = "canceled"
	}
	for i := range takes {
		s.decisions.WithLabelValues(takes[i].Limit.Name, result, "").Inc()
	}
}
