package collect

import (
	"context"
	"net/http"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"tallyroll/internal/boot"
)

const (
	// grace is how long requests may still wait for JetStream when the service stops. It is shorter than
	// the five seconds that boot.Serve gives them, so that every one of them is answered.
	grace = 4 * time.Second
	// flushWithin bounds a write to a NATS server that does not read. Meanwhile the publisher stands still.
	flushWithin = 3 * time.Second
	// answerRoom is for reading the body before the wait for JetStream, and for writing the answer after it.
	answerRoom = 2 * bodyWithin
)

// Run runs the service. It listens at once, whether NATS answers or not, until ctx ends and SHUTDOWN_DELAY is over, in
// which it is not ready any more. Then, in this order: it stops listening; requests under way get an answer, for which they wait at most
// grace; the publisher stops; the connection to NATS closes. All of it takes less than 6 seconds. At each
// signal of reload, which may be nil, it reads the file of tokens again. The settings must have been validated.
func Run(ctx context.Context, settings Settings, log zerolog.Logger, reload <-chan os.Signal) error {
	ctx, leaving, stop := settings.Shutdown.Begin(ctx, log)
	defer stop()
	s, err := newService(settings, log)
	if err != nil {
		return err
	}
	s.server.Leaving = leaving
	settings.Pages.warn(log)
	listeners, err := settings.addresses().Listen(log, s.metrics.Reloads)
	if err != nil {
		return err
	}
	log.Info().Str("version", boot.Version()).Str("nats", settings.NATS.URL.String()).Str("subject", settings.Subject).
		Int("tokens", s.tokens.count()).Bool("pages", settings.Pages.on()).
		Str("url", listeners.URL()).Msg("started")

	served, endPublisher := context.WithCancel(context.WithoutCancel(ctx)) // ends when no request is under way any more
	defer endPublisher()
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.publish(gctx, served) })
	group.Go(func() error { return s.tokens.run(gctx, reload) })
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

// publish connects to NATS and publishes what the requests bring, until served ends. When ctx ends, the service stops.
func (s *service) publish(ctx, served context.Context) error {
	// Nothing piles up in the client while the connection is lost: the publisher keeps what may be
	// stored and sends it again by itself.
	conn, err := s.settings.NATS.Connect(ctx, "tallyroll collect", s.log, nats.ReconnectBufSize(-1), nats.FlusherTimeout(flushWithin))
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
	group.Go(func() error { return s.target.run(gctx, js) })
	group.Go(func() error { return p.run(gctx, ctx.Done()) })
	return group.Wait()
}
