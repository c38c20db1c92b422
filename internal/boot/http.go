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

// Serve answers HTTP on the listener until ctx ends, then lets what is under
// way finish for up to five seconds. With a certificate it serves HTTPS. A handler
// that answers for longer than WriteTimeout moves its own deadline.
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

// LogErrors sends what the server has to say (failed TLS handshakes, say) to the
// log, a few lines a minute: clients decide how much there is.
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

// ListenNear opens the address, or if its port is taken any free one of the same
// host: for an address that nobody has chosen and that others need not know.
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
