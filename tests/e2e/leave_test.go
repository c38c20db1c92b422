package e2e_test

import (
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// A service that is stopped with SHUTDOWN_DELAY reports at once that it is not ready, answers every request
// of proxies that have not noticed yet, and ends with code 0. Proxies keep their connections: each is closed
// by an answer, so that none is closed under a request.
func TestAServiceLeavesWithoutAFailedRequest(t *testing.T) {
	t.Parallel()
	const delay = 5 * time.Second
	setting := "SHUTDOWN_DELAY=" + delay.String()
	s := start(t)
	for name, c := range map[string]struct {
		service            *stack.Service
		method, path, body string
		status             int
	}{
		"query":   {stack.Query(t, s.redis, setting), http.MethodGet, "/v1/total?key=a&window=1h", "", http.StatusOK},
		"collect": {stack.Collect(t, s.nats, setting), http.MethodPost, "/v1/hits", `{"key":"a"}`, http.StatusAccepted},
		"promql":  {stack.PromQL(t, s.redis, setting), http.MethodGet, "/api/v1/query?query=vector(1)", "", http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := c.service.URL()
			var answers atomic.Int64
			var noticed atomic.Bool
			var clients sync.WaitGroup
			for range 4 {
				client := &http.Client{Transport: &http.Transport{}}
				defer client.CloseIdleConnections()
				clients.Go(func() {
					for !noticed.Load() {
						if status, text := request(client, c.method, url+c.path, c.body); status != c.status {
							t.Errorf("after %d answers: %d %s", answers.Load(), status, text)
							return
						}
						answers.Add(1)
					}
				})
			}
			stack.Eventually(t, "answers", func() (bool, string) { return answers.Load() > 20, "" })
			began := time.Now()
			c.service.Signal(syscall.SIGTERM)
			eventuallySays(t, url+"/readyz", http.StatusServiceUnavailable, "stopping")
			resp, err := http.Get(url + "/healthz")
			require.NoError(t, err)
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK || !resp.Close {
				t.Errorf("/healthz: %d, and the connection is closed: %v", resp.StatusCode, resp.Close)
			}
			notReady := answers.Load()
			stack.Eventually(t, "answers of a service that is not ready", func() (bool, string) { return answers.Load() > notReady+20, "" })
			noticed.Store(true)
			clients.Wait()
			require.Zero(t, c.service.Wait())
			if took := time.Since(began); took < delay {
				t.Errorf("it ended after %v", took)
			}
		})
	}
}
