package worker

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"tallyroll/internal/consume"
	"tallyroll/internal/consume/fleet"
	"tallyroll/internal/platform/buildinfo"
	"tallyroll/internal/platform/natsconn"
	"tallyroll/internal/platform/redisconn"
	"tallyroll/internal/platform/release"
	"tallyroll/internal/platform/systemd"
	"tallyroll/internal/platform/wait"
	"tallyroll/internal/web"
	"tallyroll/internal/window/schema"
)

// Run connects, counts until ctx ends, commits what it has read and closes. The settings must have been
// validated. progress may be nil. At each signal of reload, which may be nil, it rereads its files.
func Run(ctx context.Context, settings Settings, log zerolog.Logger, progress consume.Progress,
	reload <-chan os.Signal) error {
	log = log.With().Str("worker", settings.Worker).Logger()
	registry := buildinfo.NewRegistry()
	metrics := newMetrics(registry)
	files := buildinfo.NewFiles(registry, log)
	rulebook, err := consume.OpenRulebook(settings.Rules, settings.Streams.Match, metrics.sessions, files, log)
	if err != nil {
		return err
	}
	listener, err := listen(settings, log)
	if err != nil {
		return err
	}
	w := &worker{
		settings: settings, log: log, progress: progress, metrics: metrics, rules: rulebook,
		status: &status{waits: consume.NewWaits(), reading: make(map[string]bool)},
		own:    ownStreams{settings: settings, log: log}, discoverDue: wait.NewSignal(),
		sessions: make(map[string]context.CancelFunc), absent: make(map[string]bool),
		metricStreams: make(map[string]bool),
	}

	// The status server outlives the work, so that /healthz answers while the last commit runs.
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return web.Serve(serving, listener, w.status.serve(registry), nil) })
	group.Go(func() error {
		defer stopServing()
		return w.connectAndRun(gctx, listener)
	})
	group.Go(func() error {
		systemd.Announce(gctx, func(context.Context) string {
			why, _ := w.status.unready()
			return why
		})
		return nil
	})
	group.Go(func() error { return files.Follow(serving, reload) })
	ended := make(chan error, 1)
	go func() { ended <- group.Wait() }()
	err, late := awaitEnd(ctx, ended)
	if late {
		log.Error().Strs("streams", w.status.streams()).Msg("shutdown timed out; uncommitted hits will be read again")
		return nil
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	log.Info().Msg("stopped")
	return nil
}

// listen opens the status address. If INGEST_ADDR is not set and the default port is in use, it uses a free
// port.
func listen(settings Settings, log zerolog.Logger) (net.Listener, error) {
	if settings.AddrGiven {
		return settings.Addr.Listen()
	}
	listener, err := settings.Addr.ListenNear()
	if err == nil && listener.Addr().String() != settings.Addr.String() {
		log.Warn().Str("status", listener.Addr().String()).
			Msgf("status address %s is in use; listening on %s: set INGEST_ADDR to choose one", settings.Addr,
				listener.Addr())
	}
	return listener, err
}

func (w *worker) connectAndRun(ctx context.Context, listener net.Listener) error {
	client := w.settings.Redis.Logging(w.log).ClientOnConnect(schema.RewriteTorn(w.logRewritten))
	defer client.Close()
	if err := redisconn.Await(ctx, client, w.log); err != nil {
		return err
	}
	w.store = schema.NewStore(client, w.settings.Redis.Namespace)
	w.store.Bounds, w.store.NamesMemory = w.settings.bounds, w.settings.NamesMemory
	var err error
	if w.layout, err = (&namespace{w.settings, w.store, w.log}).open(ctx); err != nil {
		return err
	}

	w.metrics.natsUp(false)
	conn, err := w.settings.NATS.Connect(ctx, w.settings.Worker, w.log, natsconn.ReportUp(w.metrics.natsUp))
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := w.settings.NATS.JetStream(conn, jetstream.WithPublishAsyncTimeout(5*time.Second))
	if err != nil {
		return err
	}
	w.own.js = js
	what := strings.TrimSpace("JetStream " + natsconn.DescribeRemote(js))
	if err := wait.Until(ctx, w.log, what, func(ctx context.Context) error {
		_, err := js.AccountInfo(ctx)
		return natsconn.ExplainJetStream(js, err)
	}); err != nil {
		return err
	}
	if err := awaitLeader(ctx, w.log, w.own.createRejects); err != nil {
		return w.settings.createError(err)
	}
	w.log.Info().Str("version", release.Version()).Str("nats", natsconn.ServerOf(conn)).
		Str("redis", w.settings.Redis.URL.Addr()).
		Str("namespace", w.settings.Redis.Namespace).Stringer("tiers", w.layout.Tiers).Int("shards", w.layout.Shards).
		Stringer("streams", w.readable()).Str("status", listener.Addr().String()).Msg("started")
	w.assemble(js, fleet.New(fleet.Config{
		JS: js, Namespace: w.settings.Redis.Namespace, ID: w.store.ID,
		Name: w.settings.Worker, Status: listener.Addr().String(), Streams: w.readable(), Replicas: w.settings.Replicas,
		LastCommit: consume.LastCommitWithin, LeaveWithin: leaveWithin, Log: w.log,
	}))
	return w.readShare(ctx)
}

func (w *worker) logRewritten(err error) {
	if err != nil {
		w.log.Warn().Err(err).Msg("if Redis is killed while it writes a transaction, and then restarted twice, hits " +
			"can count twice: answers will have complete: false")
		return
	}
	w.log.Info().Msg("Redis was started: it rewrites its append-only file, as after each start. There is nothing to do")
}
