package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"tallyroll/internal/platform/program"
	"tallyroll/internal/platform/setting"
)

// Shutdown is how long a service keeps serving after SIGTERM. Clients need a while to learn that it is
// leaving: Kubernetes signals a pod and removes its address from the services at the same time.
type Shutdown struct {
	Delay time.Duration `env:"SHUTDOWN_DELAY" envDefault:"0s" help:"how long to go on serving after SIGTERM, 0s to 10m, while /readyz already answers 503: set it to the time for which requests still come after that, such as 5s in Kubernetes"`
}

const maxShutdownDelay = 10 * time.Minute

func (s *Shutdown) Validate() error {
	if s.Delay < 0 || s.Delay > maxShutdownDelay {
		return &setting.Error{Key: "SHUTDOWN_DELAY", Value: s.Delay.String(), MustBe: "a duration from 0s to 10m"}
	}
	return nil
}

// Leaving is the end of a service: from SIGTERM on it is not ready, serves until the delay is over, and then
// finishes the requests under way.
type Leaving struct{ asked context.Context }

// Begin returns a context that ends a delay after ctx, for all that the service needs to serve. The caller
// must call stop when the service has ended.
func (s Shutdown) Begin(ctx context.Context,
	log zerolog.Logger) (serving context.Context, leaving Leaving, stop func()) {
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	forget := context.AfterFunc(ctx, func() {
		if s.Delay <= 0 {
			cancel()
			return
		}
		log.Info().Stringer("delay", s.Delay).Msg("asked to stop: not ready any more, and serving until " +
			"SHUTDOWN_DELAY is over")
		over := time.NewTimer(s.Delay)
		defer over.Stop()
		select {
		case <-over.C:
		case <-serving.Done():
		}
		cancel()
	})
	return serving, Leaving{ctx}, func() { forget(); cancel() }
}

// Why returns why the service is not ready if it is leaving, and otherwise "".
func (l Leaving) Why() string {
	if l.asked == nil || l.asked.Err() == nil {
		return ""
	}
	return "the service is stopping"
}

// Release closes clients' connections with their next answers once the service is leaving. So they go
// elsewhere, and no request meets a connection that closes at that moment.
func (l Leaving) Release(srv *http.Server) {
	next := srv.Handler
	srv.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if l.Why() != "" {
			w.Header().Set("Connection", "close") // of HTTP/2 net/http makes a GOAWAY
		}
		next.ServeHTTP(w, r)
	})
}

// HandleReady answers 200 at a path if why returns "" and the service is not leaving, else 503 and why.
func (l Leaving) HandleReady(mux *http.ServeMux, path string, why func(context.Context) string) {
	mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
		if reason := cmp.Or(l.Why(), why(r.Context())); reason != "" {
			http.Error(w, reason, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
}

// Serve answers HTTP on the listener until ctx ends, or HTTPS with a certificate. Requests under way then
// have five seconds. A handler that answers for longer than WriteTimeout must move its own deadline. A header
// has as long as a whole request, because a browser connects first, and a slow one asks seconds later.
func Serve(ctx context.Context, l net.Listener, h http.Handler, certificate *Certificate,
	options ...func(*http.Server)) error {
	srv := &http.Server{
		Handler:        h,
		ReadTimeout:    15 * time.Second,
		WriteTimeout:   30 * time.Second,
		IdleTimeout:    2 * time.Minute,
		MaxHeaderBytes: 64 << 10,
		// A connection's bodies that no handler reads take as much memory as its window.
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          100,
			MaxReceiveBufferPerConnection: 256 << 10, MaxReceiveBufferPerStream: 256 << 10,
		},
	}
	for _, set := range options {
		set(srv)
	}
	ended := make(chan error, 1)
	if certificate == nil {
		go func() { ended <- srv.Serve(l) }()
	} else {
		srv.TLSConfig = certificate.TLS()
		go func() { ended <- srv.ServeTLS(l, "", "") }()
	}
	select {
	case err := <-ended:
		return fmt.Errorf("serve HTTP on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err := srv.Shutdown(bounded)
	if errors.Is(err, context.DeadlineExceeded) {
		return srv.Close()
	}
	return err
}

// LogErrors sends the server's own messages (failed TLS handshakes, for example) to the log, [Sampled].
func LogErrors(to zerolog.Logger) func(*http.Server) {
	lines := errorLines{program.Sampled(to)}
	return func(srv *http.Server) { srv.ErrorLog = log.New(lines, "", 0) }
}

type errorLines struct{ log zerolog.Logger }

func (e errorLines) Write(line []byte) (int, error) {
	e.log.Warn().Str("error", strings.TrimSpace(string(line))).Msg("HTTP server")
	return len(line), nil
}
