package program

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

	"tallyroll/internal/platform/setting"
)

// healthTimeout bounds the request. It is below the default limit of container engines for a check.
const healthTimeout = 3 * time.Second

// healthcheckMode is --healthcheck of a program that listens on the address of this setting.
func healthcheckMode(addr setting.Field) Mode {
	return Mode{
		Name:  "healthcheck",
		Help:  "asks the program at " + addr.Key + " for /healthz: exit code 0 if it is well, 1 if not.",
		Reads: "settings are environment variables",
		Run:   func() (int, error) { return setting.ExitOK, checkHealth(addr.Key, addr.Default) },
	}
}

// checkHealth requests /healthz of the program that runs here with the same settings, because an image built
// from scratch has no other HTTP client. addrKey is the variable with the program's address, def its default.
func checkHealth(addrKey, def string) error {
	program := strings.TrimSuffix(addrKey, "_ADDR")
	addr, scheme := cmp.Or(os.Getenv(addrKey), def), "http"
	if os.Getenv(program+"_TLS_CERT") != "" {
		scheme = "https"
	}
	if apart := os.Getenv(program + "_METRICS_ADDR"); apart != "" && os.Getenv(program+"_TLS_CLIENT_CA") != "" {
		addr, addrKey, scheme = apart, program+"_METRICS_ADDR", "http" // the other one asks for a certificate
	}
	dialer := &net.Dialer{}
	client := &http.Client{
		Timeout: healthTimeout,
		Transport: &http.Transport{
			// Dial the address that the program listens on: for 0.0.0.0 or an empty host, the local machine.
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return dialer.DialContext(ctx, network, addr)
			},
			// The certificate names the public host, and only this program can answer on its own address.
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		},
	}
	resp, err := client.Get(scheme + "://localhost/healthz")
	if err != nil && strings.Contains(err.Error(), "certificate required") { // an alert; its type is not exported
		err = fmt.Errorf("%w: set %s_METRICS_ADDR, where no certificate is needed", err, program)
	}
	if err != nil {
		return fmt.Errorf("health of %s (%s): %w", addr, addrKey, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("health of %s (%s): %s", addr, addrKey, resp.Status)
	}
	return nil
}
