package query

import (
	"context"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"tallyroll/internal/boot"
	"tallyroll/internal/window"
)

// Run is the service: it listens at once, whether Redis (and NATS, where one is
// set) answers or not, and answers until ctx ends. Requests under way are finished before the connections to
// Redis are closed. Settings must have been validated.
func Run(ctx context.Context, settings Settings, log zerolog.Logger) error {
	listener, err := boot.Listen("QUERY_ADDR", settings.Addr)
	if err != nil {
		return err
	}
	client := settings.Redis.Client()
	defer client.Close()
	store := window.NewStore(client, settings.Redis.Namespace)
	reader := window.NewReader(store)
	health := newHealth(reader, log)
	reader.MaxCells, reader.MaxPoints = settings.MaxCells, settings.MaxPoints
	s := newService(reader, health, settings.MaxKeys, settings.Tokens, log)
	s.origins = settings.Origins
	s.hub.reader = window.NewReader(store) // one that is bounded by the number of questions
	s.hub.maxClients, s.hub.maxQuestions = settings.LiveClients, settings.LiveQuestions
	handler := s.handler()

	scheme := "http"
	if settings.TLSCert != "" {
		scheme = "https"
	}
	log.Info().Str("version", boot.Version()).Str("redis", settings.Redis.URL.Addr()).Str("namespace", settings.Redis.Namespace).
		Bool("tokens", settings.Tokens.required()).Str("url", scheme+"://"+listener.Addr().String()).Msg("started")

	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return health.run(gctx) })
	group.Go(func() error { return s.hub.run(gctx) })
	if settings.NATSURL.Set() {
		group.Go(func() error {
			return s.serveNATS(gctx, boot.NATS{URL: settings.NATSURL, NATSAccess: settings.NATS}, settings.Redis.Namespace)
		})
	}
	group.Go(func() error {
		return boot.Serve(gctx, listener, handler, settings.TLSCert, settings.TLSKey, boot.LogErrors(log))
	})
	if err := group.Wait(); err != nil {
		return err
	}
	log.Info().Msg("stopped")
	return nil
}
