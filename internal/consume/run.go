package consume

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"tallyroll/internal/boot"
	"tallyroll/internal/window"
)

// Progress is told of every stream that is far behind, once a second, and of its
// end by an empty one. Streams call it at the same time; it must not block.
type Progress func(stream string, p boot.Progress)

// Run is the worker: it connects, counts until ctx ends, commits what it has and
// closes. Settings must have been validated; progress may be nil.
func Run(ctx context.Context, settings Settings, log zerolog.Logger, progress Progress) error {
	log = log.With().Str("worker", settings.Worker).Logger()
	listener, err := listen(settings, log)
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	w := &worker{
		settings: settings, layout: settings.layout, log: log, progress: progress,
		metrics: newMetrics(registry),
		outage:  &outage{log: log}, waits: newWaits(),
		open: make(map[string]*held), absent: make(map[string]bool),
		counted: make(map[string]bool), look: make(chan struct{}, 1),
	}
	w.clocks = newClocks(w.metrics, log)

	// The status server outlives the work, so that /healthz answers while the last commit runs.
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return boot.Serve(serving, listener, w.status(registry), "", "") })
	group.Go(func() error {
		defer stopServing()
		return w.connectAndRun(gctx, listener)
	})
	ended := make(chan error, 1)
	go func() { ended <- group.Wait() }()
	err, late := awaitEnd(ctx, ended)
	if late {
		log.Error().Strs("streams", w.reading()).Msg("something hangs, and the time to stop in is over: leaving it behind")
		return nil
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	log.Info().Msg("stopped")
	return nil
}

// listen opens the address of the status. The second worker of a machine, if
// nobody has chosen one for it, takes any free port.
func listen(settings Settings, log zerolog.Logger) (net.Listener, error) {
	if settings.AddrGiven {
		return boot.Listen("INGEST_ADDR", settings.Addr)
	}
	listener, err := boot.ListenNear("INGEST_ADDR", settings.Addr)
	if err == nil && listener.Addr().String() != settings.Addr {
		log.Warn().Str("taken", settings.Addr).Str("status", listener.Addr().String()).Msg("the usual status address is taken; set INGEST_ADDR to choose one")
	}
	return listener, err
}

func (w *worker) connectAndRun(ctx context.Context, listener net.Listener) error {
	client := w.settings.Redis.Client()
	defer client.Close()
	if err := boot.WaitForRedis(ctx, client, w.log); err != nil {
		return err
	}
	w.store = window.NewStore(client, w.settings.Redis.Namespace)
	if err := w.openNamespace(ctx); err != nil {
		return err
	}

	conn, err := w.settings.NATS.Connect(ctx, w.settings.Worker, w.log)
	if err != nil {
		return err
	}
	defer conn.Close()
	if w.js, err = jetstream.New(conn, jetstream.WithPublishAsyncTimeout(5*time.Second)); err != nil {
		return err
	}
	if err := boot.WaitFor(ctx, w.log, "JetStream", func(ctx context.Context) error {
		_, err := w.js.AccountInfo(ctx)
		if errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount) {
			return boot.UsageError{Err: fmt.Errorf("NATS at %s: %w: start nats-server with -js, or enable JetStream for the account", boot.NATSServer(conn), err)}
		}
		return err
	}); err != nil {
		return err
	}
	if err := awaitLeader(ctx, w.log, w.ensureRejected); err != nil {
		return w.settings.refused(err)
	}
	w.log.Info().Str("version", boot.Version()).Str("nats", boot.NATSServer(conn)).Str("redis", w.settings.Redis.URL.Addr()).
		Str("namespace", w.settings.Redis.Namespace).Stringer("tiers", w.layout.Tiers).Int("shards", w.layout.Shards).
		Stringer("streams", w.settings.Streams).Str("status", listener.Addr().String()).Msg("started")
	w.fleet = newFleet(w.js, w.store.ID, w.settings, listener.Addr().String(), w.metrics, w.log)
	return w.run(ctx)
}

// openNamespace sees that Redis and the namespace in it are fit to count in. It
// waits while Redis is away, since a fail-over can begin once it has answered;
// what only a person can mend is an error at once.
func (w *worker) openNamespace(ctx context.Context) error {
	if err := boot.AskRedis(ctx, w.log, w.checkRedis); err != nil {
		return err
	}
	return boot.AskRedis(ctx, w.log, func(ctx context.Context) error {
		err := w.store.EnsureLayout(ctx, w.layout)
		var mismatch *window.LayoutMismatchError
		if errors.As(err, &mismatch) || errors.Is(err, window.ErrBadLayout) {
			return boot.UsageError{Err: err}
		}
		return err
	})
}

// checkRedis refuses a Redis whose settings break the promise, and says what else
// people should know of them, once all its servers have been looked at.
func (w *worker) checkRedis(ctx context.Context) error {
	warnings, err := w.store.CheckServer(ctx)
	var eviction *window.EvictionError
	if err != nil && !errors.As(err, &eviction) {
		return err
	}
	for _, warning := range warnings {
		w.log.Warn().Msg(warning)
	}
	if eviction == nil {
		return nil
	}
	if !w.settings.AllowEviction {
		return boot.UsageError{Err: err}
	}
	w.log.Warn().Msg(err.Error())
	return nil
}

// status serves /healthz (the process), /readyz (every stream is being read, and
// no commit waits for anything) and /metrics.
func (w *worker) status(registry *prometheus.Registry) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprintln(rw, "ok") })
	mux.HandleFunc("GET /readyz", func(rw http.ResponseWriter, _ *http.Request) {
		if why := w.unready(); why != "" {
			http.Error(rw, why, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(rw, "ready")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	return mux
}
