package collect

import (
	"context"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"tallyroll/internal/access"
	"tallyroll/internal/buildinfo"
	"tallyroll/internal/outbox"
	"tallyroll/internal/program"
	"tallyroll/internal/release"
	"tallyroll/internal/web"
)

const (
	// grace is how long requests may still wait for JetStream at shutdown. It is shorter than web.Serve's
	// five seconds, so that every one of them is answered.
	grace = 4 * time.Second
	// flushWithin bounds a write to a NATS server that does not read, which blocks the publisher.
	flushWithin = 3 * time.Second
	// answerRoom is for reading the body before the wait for JetStream, and writing the answer after it.
	answerRoom = 2 * bodyWithin
)

// Run listens at once, even without NATS, until ctx ends and SHUTDOWN_DELAY, when it is not ready any more,
// is over. Then, in this order, within 6 seconds: it stops listening; requests under way wait at most grace
// for their answer; the publisher stops; the connection to NATS closes. At each signal of reload, which may
// be nil, it rereads its files. The settings must have been validated.
func Run(ctx context.Context, settings Settings, log zerolog.Logger, reload <-chan os.Signal) error {
	ctx, leaving, stop := settings.Shutdown.Begin(ctx, log)
	defer stop()
	s, err := newService(settings, log)
	if err != nil {
		return err
	}
	s.server.Leaving = leaving
	settings.Pages.warn(log)
	listeners, err := settings.addresses().Listen(s.server.Files)
	if err != nil {
		return err
	}
	log.Info().Str("version", release.Version()).Str("nats", settings.NATS.URL.String()).Str("subject", settings.Subject).
		Int("tokens", s.tokens.Count()).Bool("pages", settings.Pages.on()).
		Str("url", listeners.URL()).Msg("started")

	served, endPublisher := context.WithCancel(context.WithoutCancel(ctx)) // ends when no request is under way any more
	defer endPublisher()
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.publish(gctx, served) })
	group.Go(func() error { return s.server.Files.Follow(gctx, reload) })
	group.Go(func() error {
		defer endPublisher()
		return s.server.Serve(gctx, listeners, s.handler(), func(srv *http.Server) {
			srv.WriteTimeout = settings.Timeout + answerRoom
			srv.MaxHeaderBytes = 16 << 10
		})
	})
	if err := group.Wait(); err != nil {
		return err
	}
	log.Info().Msg("stopped")
	return nil
}

// publish connects to NATS and publishes what requests bring, until served ends. At the end of ctx, the
// service stops.
func (s *service) publish(ctx, served context.Context) error {
	conn, err := s.settings.NATS.Connect(ctx, "tallyroll collect", s.log, append(outbox.ConnOptions(), nats.FlusherTimeout(flushWithin))...)
	if ctx.Err() != nil {
		if conn != nil {
			conn.Close()
		}
		return nil
	}
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := s.settings.NATS.JetStream(conn)
	if err != nil {
		return err
	}
	p := newPublisher(conn, s.target, s.metrics, s.settings, s.log)
	s.js.Store(&js)
	s.publisher.Store(p)
	group, gctx := errgroup.WithContext(served)
	group.Go(func() error { return s.target.watch(gctx, js) })
	group.Go(func() error { return p.serve(gctx, ctx.Done()) })
	return group.Wait()
}

type service struct {
	server    web.Server
	settings  Settings
	gate      gate
	tokens    *access.Tokens
	unpacker  *unpacker
	target    *target
	js        atomic.Pointer[jetstream.JetStream] // nil while there is no connection yet
	publisher atomic.Pointer[publisher]           // nil while there is no connection yet
	metrics   *metrics
	log       zerolog.Logger
	failures  zerolog.Logger // limited to a few lines per minute, because clients decide how often something fails
}

func newService(settings Settings, log zerolog.Logger) (*service, error) {
	s := &service{settings: settings, target: newTarget(settings.Subject, log), log: log,
		failures: program.Sampled(log)}
	s.gate.maxRequests, s.gate.maxBytes = int64(settings.MaxRequests), settings.MaxWaiting
	s.metrics = newMetrics(&s.gate)
	s.server = web.Server{Metrics: s.metrics.Metrics, Files: buildinfo.NewFiles(s.metrics.Registry, log), Log: log, Apart: settings.MetricsAddr != ""}
	var err error
	s.tokens, err = access.New(access.Settings{Program: "COLLECT", File: settings.TokensFile}, s.server.Files)
	if err != nil {
		return nil, err
	}
	s.unpacker, err = newUnpacker(settings.MaxBody)
	return s, err
}

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
	s.describe(mux).RoutePages()
	mux.Handle("GET /{$}", http.RedirectHandler("/docs", http.StatusFound))
}

// conn is the connection to NATS, or nil before there is one.
func (s *service) conn() *nats.Conn {
	js := s.js.Load()
	if js == nil {
		return nil
	}
	return (*js).Conn()
}

// metrics are described in docs/operations.md.
type metrics struct {
	*web.Metrics
	storeSeconds prometheus.Histogram
	hits         prometheus.Counter
	messages     prometheus.Counter
	duplicates   prometheus.Counter
	sentAgain    prometheus.Counter
}

func newMetrics(g *gate) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "tallyroll", Subsystem: "collect", Name: name, Help: help})
	}
	gauge := func(name, help string, value func() int64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "tallyroll", Subsystem: "collect", Name: name, Help: help},
			func() float64 { return float64(value()) })
	}
	m := &metrics{
		Metrics: web.NewMetrics("collect", 17),
		storeSeconds: prometheus.NewHistogram(buildinfo.Native(prometheus.HistogramOpts{
			Namespace: "tallyroll", Subsystem: "collect", Name: "store_seconds",
			Help:    "Seconds from the first send of a message until JetStream had stored it.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 17),
		})),
		hits:       counter("hits_total", "Hit objects and CloudEvents that JetStream has stored; each may count more than one."),
		messages:   counter("messages_total", "Messages that JetStream has stored."),
		duplicates: counter("duplicates_total", "Messages that JetStream had stored before: sent again by this service, or by a client with the same Idempotency-Key."),
		sentAgain:  counter("sent_again_total", "Sends of messages of whose earlier send nothing was known."),
	}
	m.Registry.MustRegister(m.storeSeconds, m.hits, m.messages, m.duplicates, m.sentAgain,
		gauge("requests", "Requests under way.", g.requests.Load),
		gauge("waiting_bytes", "Bytes of bodies and hits in memory, beyond the first 4096 of each request.", g.bytes.Load))
	return m
}

// stored measures a stored message; sent is when it was first sent.
func (m *metrics) stored(hits int, sent time.Time, duplicate bool) {
	m.storeSeconds.Observe(time.Since(sent).Seconds())
	if duplicate {
		m.duplicates.Inc()
		return
	}
	m.messages.Inc()
	m.hits.Add(float64(hits))
}
