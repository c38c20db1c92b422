package boot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// Serve answers HTTP on the listener until ctx ends, then lets what is under
// way finish for up to five seconds. With a certificate it serves HTTPS.
func Serve(ctx context.Context, l net.Listener, h http.Handler, certFile, keyFile string) error {
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       15 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
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

// Listen opens the address that the variable key names.
func Listen(key, addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, &SettingError{Key: key, Value: addr, Allowed: fmt.Sprintf("a free host:port (%v)", err)}
	}
	return l, nil
}
