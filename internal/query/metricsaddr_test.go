package query

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/boot"
	"tallyroll/tests/stack"
)

// With QUERY_METRICS_ADDR the metrics and the profiles are there, and nowhere else; the document does not promise them.
func TestMetricsApart(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	var settings Settings
	err := boot.Parse(&settings, "REDIS_URL="+redis.URL(), fmt.Sprintf("QUERY_ADDR=127.0.0.1:%d", stack.FreePort(t)),
		fmt.Sprintf("QUERY_METRICS_ADDR=127.0.0.1:%d", stack.FreePort(t)), "QUERY_TOKENS=secret")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, settings, zerolog.Nop(), nil) }()
	get := func(addr, path string) (int, string) {
		status, body, err := stack.Do(http.MethodGet, "http://"+addr+path, nil)
		return status, fmt.Sprint(string(body), err)
	}
	stack.Eventually(t, "the metrics", func() (bool, string) {
		status, body := get(settings.MetricsAddr, "/metrics")
		return status == http.StatusOK && strings.Contains(body, "tallyroll_build_info{"), body
	})
	for _, c := range []struct {
		addr, path string
		want       int
	}{
		{settings.MetricsAddr, "/healthz", 200}, {settings.MetricsAddr, "/readyz", 503}, {settings.MetricsAddr, "/v1/counters", 404},
		{settings.Addr, "/metrics", 404}, {settings.Addr, "/healthz", 200},
		{settings.MetricsAddr, "/debug/pprof/heap", 200}, {settings.Addr, "/debug/pprof/heap", 404}, {settings.Addr, "/debug/pprof/", 404},
	} {
		if status, body := get(c.addr, c.path); status != c.want {
			t.Errorf("%s%s: %d, want %d: %s", c.addr, c.path, status, c.want, body)
		}
	}
	if _, document := get(settings.Addr, "/openapi.json"); strings.Contains(document, `"/metrics"`) {
		t.Error("the document promises /metrics")
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("Run: %v", err)
	}
}
