package main

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"tallyroll/tests/stack"
)

// With PROMQL_METRICS_ADDR the metrics and the profiles are there, and nowhere else. Its health is at both.
func TestMetricsApart(t *testing.T) {
	t.Parallel()
	apart := fmt.Sprintf("http://127.0.0.1:%d", stack.FreePort(t))
	redis := stack.Redis(t)
	seed(t, redis.Client(), time.Now())
	public := start(t, redis, "PROMQL_METRICS_ADDR="+apart[len("http://"):]).URL()
	for address, want := range map[string]int{
		apart + "/metrics": 200, apart + "/debug/pprof/heap": 200, apart + "/healthz": 200, apart + "/api/v1/labels": 404,
		public + "/metrics": 404, public + "/debug/pprof/heap": 404, public + "/healthz": 200,
	} {
		if status, body, err := stack.Do(http.MethodGet, address, nil); err != nil || status != want {
			t.Errorf("%s answers %d, want %d: %.200s %v", address, status, want, body, err)
		}
	}
}
