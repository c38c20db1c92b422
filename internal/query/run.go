package query

import (
	"context"
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
	client := settings.Redis.Client()
	defer client.Close()
	store := window.NewStore(client, settings.Redis.Namespace)
	requests := window.NewReader(store)
	requests.MaxCells, requests.MaxPoints = settings.MaxCells, settings.MaxPoints
	s, err := newService(requests, window.NewReader(store), takes, settings, log)
	if err != nil {
		return err
	}
	s.server.Leaving = leaving
	listeners, err := settings.addresses().Listen(log, s.server.Metrics.Reloads)
	if err != nil {
		return err
	}
	log.Info().Str("version", boot.Version()).Str("redis", settings.Redis.URL.Addr()).Str("namespace", settings.Redis.Namespace).
		Bool("tokens", settings.Tokens.Required()).Int("limits", s.gate.Named()).Str("url", listeners.URL()).Msg("started")

	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.health.Run(gctx) })
	group.Go(func() error { return s.live.Run(gctx) })
	group.Go(func() error { return s.gate.Run(gctx, reload, log) })
	if settings.asksNATS() {
		group.Go(func() error {
			return s.serveNATS(gctx, settings.natsAt(), settings.Redis.Namespace)
		})
	}
	group.Go(func() error { return s.server.Serve(gctx, listeners, s.handler()) })
	if err := group.Wait(); err != nil {
		return err
	}
	log.Info().Msg("stopped")
	return nil
}
