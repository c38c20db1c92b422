package boot

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"
)

// Serve answers HTTP on the listener until ctx ends. Requests under way then have up to
// five seconds to finish. With a certificate, it serves HTTPS. If a handler answers for longer than
// WriteTimeout, it must move its own deadline.
func Serve(ctx context.Context, l net.Listener, h http.Handler, certFile, keyFile string, options ...func(*http.Server)) error {
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       15 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
	}
	for _, set := range options {
		set(srv)
	}
	ended := make(chan error, 1)
	go func() {
		if certFile != "" {
			ended <- srv.ServeTLS(l, certFile, keyFile)
		} else {
			ended <- srv.Serve(l)
		}
	}()
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

// LogErrors sends the server's own messages (failed TLS handshakes, for example) to the log. It
// limits them to a few lines per minute, because clients can cause any number of them.
func LogErrors(to zerolog.Logger) func(*http.Server) {
	sampled := to.Sample(&zerolog.BurstSampler{Burst: 5, Period: time.Minute})
	return func(srv *http.Server) { srv.ErrorLog = log.New(errorLines{sampled}, "", 0) }
}

type errorLines struct{ log zerolog.Logger }

func (e errorLines) Write(line []byte) (int, error) {
	e.log.Warn().Str("error", strings.TrimSpace(string(line))).Msg("HTTP server")
	return len(line), nil
}

// Listen opens the address that the variable key names.
func Listen(key, addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		allowed := fmt.Sprintf("a host:port of this machine (%v)", err)
		if errors.Is(err, syscall.EADDRINUSE) {
			allowed = fmt.Sprintf("a host:port that is free (%v): stop what listens there, or set %s to another port; port 0 is any free one", err, key)
		}
		return nil, &SettingError{Key: key, Value: addr, Allowed: allowed}
	}
	return l, nil
}

// ListenNear opens the address or, if its port is taken, any free port of the same host. It
// is for an address that nobody has chosen and that others do not need to know.
func ListenNear(key, addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err == nil || !errors.Is(err, syscall.EADDRINUSE) {
		return l, err
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, &SettingError{Key: key, Value: addr, Allowed: "host:port"}
	}
	return Listen(key, net.JoinHostPort(host, "0"))
}
