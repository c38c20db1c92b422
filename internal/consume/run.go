package consume

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"tallyroll/internal/boot"
	"tallyroll/internal/buildinfo"
	"tallyroll/internal/fleet"
	"tallyroll/internal/wake"
	"tallyroll/internal/window"
)

// Progress is called once a second for every stream that is far behind, and with an empty
// boot.Progress when that ends. Streams call it at the same time. It must not block.
type Progress func(stream string, p boot.Progress)

// Run runs a worker: it connects, counts until ctx ends, commits what it has read and
// closes. The settings must have been validated. progress may be nil. At each signal of reload, which
// may be nil, it reads the file of rules again.
func Run(ctx context.Context, settings Settings, log zerolog.Logger, progress Progress, reload <-chan os.Signal) error {
	log = log.With().Str("worker", settings.Worker).Logger()
	registry := buildinfo.NewRegistry()
	metrics := newMetrics(registry)
	book, err := openRulebook(settings.Rules, settings.Streams, metrics, log)
	if err != nil {
		return err
	}
	listener, err := listen(settings, log)
	if err != nil {
		return err
	}
	w := &worker{
		settings: settings, log: log, progress: progress,
		metrics: metrics, rules: book,
		outage: &outage{log: log}, waits: newWaits(),
		open: make(map[string]*held), absent: make(map[string]bool),
		counted: make(map[string]bool), look: wake.New(),
	}
	w.clocks = newClocks(w.metrics, log)

	// The status server outlives the work, so that /healthz answers while the last commit runs.
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return boot.Serve(serving, listener, w.status(registry), nil) })
	group.Go(func() error {
		defer stopServing()
		return w.connectAndRun(gctx, listener)
	})
	if book != nil {
		group.Go(func() error {
			book.run(serving, reload)
			return nil
		})
	}
	ended := make(chan error, 1)
	go func() { ended <- group.Wait() }()
	err, late := awaitEnd(ctx, ended)
	if late {
		log.Error().Strs("streams", w.holding()).Msg("something hangs, and the time allowed for stopping is over: exiting without it")
		return nil
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	log.Info().Msg("stopped")
	return nil
}

// listen opens the status address. If nobody has set an address and another worker
// of this machine has taken the default one, it takes any free port.
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
	client := w.settings.Redis.ClientOnConnect(window.RewriteTorn(w.sayRewritten))
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
	if w.js, err = w.settings.NATS.JetStream(conn, jetstream.WithPublishAsyncTimeout(5*time.Second)); err != nil {
		return err
	}
	far := boot.FarJetStream(w.js)
	if err := boot.WaitFor(ctx, w.log, strings.TrimSpace("JetStream "+far), func(ctx context.Context) error {
		_, err := w.js.AccountInfo(ctx)
		if far != "" && errors.Is(err, jetstream.ErrJetStreamNotEnabled) {
			return errors.New("nobody answers: the way there may be closed, or NATS_JS_DOMAIN or NATS_JS_API_PREFIX (or the context) names it wrongly")
		}
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
		Stringer("streams", w.reads()).Str("status", listener.Addr().String()).Msg("started")
	w.fleet = fleet.New(fleet.Config{
		JS: w.js, Namespace: w.settings.Redis.Namespace, ID: w.store.ID,
		Name: w.settings.Worker, Status: listener.Addr().String(), Streams: w.reads(), Replicas: w.settings.Replicas,
		LastCommit: shutdownCommit, LeaveWithin: leaveWithin, Log: w.log,
	})
	return w.run(ctx)
}

// sayRewritten logs what came of asking Redis to rewrite its append-only file.
func (w *worker) sayRewritten(err error) {
	if err != nil {
		w.log.Warn().Err(err).Msg("if Redis is killed while it writes a transaction, and then restarted twice, hits can count twice: answers will say complete: false")
		return
	}
	w.log.Info().Msg("Redis has been started: it rewrites its append-only file, which may end in a torn transaction")
}

// openNamespace makes sure that Redis and the namespace in it are fit for counting. It waits
// while Redis is away, because a fail-over can begin even after Redis has answered. If only a
// person can mend a problem, it returns an error at once.
func (w *worker) openNamespace(ctx context.Context) error {
	if err := boot.AskRedis(ctx, w.log, w.checkRedis); err != nil {
		return err
	}
	return boot.AskRedis(ctx, w.log, func(ctx context.Context) error {
		err := w.openLayout(ctx)
		var mismatch *window.LayoutMismatchError
		if errors.As(err, &mismatch) || errors.Is(err, window.ErrBadLayout) {
			return boot.UsageError{Err: err}
		}
		return err
	})
}

// openLayout makes the namespace with the settings, or goes on with it as it is. Tiers and shards that are
// not set are the namespace's, so that it outlives a change of the defaults. Only a start takes them. A
// running worker changes to no others: if Redis has lost the record alone, the counts are still in the
// hashes of the old tiers, and no answer would read or miss them.
func (w *worker) openLayout(ctx context.Context) error {
	want := w.settings.layout
	if !w.settings.TiersGiven || !w.settings.ShardsGiven { // a default may not be what the namespace was made with
		if err := w.store.CheckLayout(ctx); err != nil {
			return err
		}
	}
	layout, err := w.store.OpenLayout(ctx, want)
	var mismatch *window.LayoutMismatchError
	if errors.As(err, &mismatch) {
		layout, err = w.store.OpenLayout(ctx, w.settings.adopt(mismatch.Have))
	}
	if err != nil {
		return err
	}
	if mismatch != nil {
		w.log.Info().Stringer("tiers", layout.Tiers).Int("shards", layout.Shards).
			Stringer("default_tiers", want.Tiers).Int("default_shards", want.Shards).
			Msg("going on with the tiers and shards of the namespace: it was made with others than this worker would take, and no setting asks for these")
	}
	w.layout = layout
	return w.settings.checkCommands(layout)
}

// checkRedis refuses a Redis whose settings break the promise. It logs what else people
// should know about the settings, once it has checked all servers.
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

// status serves /healthz (the process runs), /readyz (the worker reads every stream of its share, and
// no commit has waited for longer than patience; it names rules that count nothing) and /metrics.
func (w *worker) status(registry *prometheus.Registry) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprintln(rw, "ok") })
	mux.HandleFunc("GET /readyz", func(rw http.ResponseWriter, _ *http.Request) {
		if why := w.unready(); why != "" {
			http.Error(rw, why, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(rw, strings.Join(append([]string{"ready"}, w.idle()...), "\n"))
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	return mux
}
