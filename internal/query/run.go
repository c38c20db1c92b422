package query

import (
	"context"
	"errors"
	"net"
	"os"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"tallyroll/internal/boot"
	"tallyroll/internal/limit"
	"tallyroll/internal/window"
)

// Run runs the service. It listens at once, whether Redis and NATS answer or not, and
// answers until ctx ends and SHUTDOWN_DELAY is over, in which it is not ready any more. It finishes the requests
// under way before it closes the connections to Redis. At each signal of reload, which may be nil, it reads the file of limits
// again. The settings must have been validated.
func Run(ctx context.Context, settings Settings, log zerolog.Logger, reload <-chan os.Signal) error {
	ctx, leaving, stop := settings.Shutdown.Begin(ctx, log)
	defer stop()
	// Takes have connections of their own: questions that read much do not hold them up.
	takeClient := settings.Redis.Client()
	defer takeClient.Close()
	takes := limit.New(takeClient, settings.Redis.Namespace, settings.TakeTimeout)
	defer takes.Wait() // answers that come late may have to be undone
	limits, err := newLimits(takes, settings)
	if err != nil {
		return err
	}
	listener, err := boot.Listen("QUERY_ADDR", settings.Addr)
	if err != nil {
		return err
	}
	var metricsListener net.Listener
	if settings.MetricsAddr != "" {
		metricsListener, err = boot.Listen("QUERY_METRICS_ADDR", settings.MetricsAddr)
		if err != nil {
			return errors.Join(err, listener.Close())
		}
	}
	client := settings.Redis.Client()
	defer client.Close()
	store := window.NewStore(client, settings.Redis.Namespace)
	requests := window.NewReader(store)
	requests.MaxCells, requests.MaxPoints = settings.MaxCells, settings.MaxPoints
	s := newService(requests, window.NewReader(store), limits, settings, log)
	s.leaving = leaving
	if settings.LimitsFile != "" {
		limits.reloaded = s.metrics.reloads.Of("limits")
	}
	cert, key := settings.keyPair()
	certificate, err := boot.OpenCertificate(cert, key, log, s.metrics.reloads.Of)
	if err != nil {
		return err
	}
	scheme := "http"
	if certificate != nil {
		scheme = "https"
	}
	log.Info().Str("version", boot.Version()).Str("redis", settings.Redis.URL.Addr()).Str("namespace", settings.Redis.Namespace).
		Bool("tokens", settings.Tokens.Required()).Int("limits", len(*limits.named.Load())).Str("url", scheme+"://"+listener.Addr().String()).Msg("started")

	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.health.run(gctx) })
	group.Go(func() error { return s.hub.run(gctx) })
	group.Go(func() error { return limits.run(gctx, reload, log) })
	if settings.asksNATS() {
		group.Go(func() error {
			return s.serveNATS(gctx, settings.natsAt(), settings.Redis.Namespace)
		})
	}
	if metricsListener != nil {
		group.Go(func() error { return s.serveMetrics(gctx, metricsListener) })
	}
	group.Go(func() error {
		return boot.Serve(gctx, listener, s.handler(), certificate, boot.LogErrors(log), leaving.Release)
	})
	if err := group.Wait(); err != nil {
		return err
	}
	log.Info().Msg("stopped")
	return nil
}
