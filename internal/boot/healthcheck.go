package boot

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

// healthTimeout bounds the request and the answer. It is shorter than the time that
// container engines allow for a check by default.
const healthTimeout = 3 * time.Second

// Healthcheck asks the program that runs beside this one with the same settings for
// /healthz. An image built from scratch has no other HTTP client. addrKey is the
// variable with the program's address, def that variable's default.
func Healthcheck(addrKey, def string) error {
	addr := cmp.Or(os.Getenv(addrKey), def)
	scheme := "http"
	if os.Getenv(strings.TrimSuffix(addrKey, "_ADDR")+"_TLS_CERT") != "" {
		scheme = "https"
	}
	dialer := &net.Dialer{}
	client := &http.Client{
		Timeout: healthTimeout,
		Transport: &http.Transport{
			// Whatever the URL says, dial the address that the program listens on. For
			// 0.0.0.0 or an empty host, this is the local machine.
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return dialer.DialContext(ctx, network, addr)
			},
			// The certificate names the public host, and nobody else can answer on our
			// own address.
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		},
	}
	resp, err := client.Get(scheme + "://localhost/healthz")
	if err != nil {
		return fmt.Errorf("health of %s (%s): %w", addr, addrKey, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("health of %s (%s): %s", addr, addrKey, resp.Status)
	}
	return nil
}
