package e2e_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// send sends a request, with a body if there is one, and returns the status; 0 if there is no answer.
func send(ctx context.Context, client *http.Client, url, body string) (status int, text string, err error) {
	method := http.MethodGet
	if body != "" {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	read, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(read), err
}

// A service that is told to stop with SHUTDOWN_DELAY says at once that it is not ready, answers every request of proxies
// that have not noticed yet, and ends with code 0. Proxies keep their connections: each is closed by an answer, so that
// none is closed under a request.
func TestAServiceLeavesWithoutAFailedRequest(t *testing.T) {
	t.Parallel()
	const delay = 5 * time.Second
	setting := "SHUTDOWN_DELAY=" + delay.String()
	s := start(t)
	for name, c := range map[string]struct {
		service    *stack.Service
		path, body string
		status     int
	}{
		"query":   {stack.Query(t, s.redis, setting), "/v1/total?key=a&window=1h", "", http.StatusOK},
		"take":    {stack.Query(t, s.redis, setting, "QUERY_TAKE=any"), "/v1/take", `{"key":"a","window":"1h","max":1000000}`, http.StatusOK},
		"collect": {stack.Collect(t, s.nats, setting), "/v1/hits", `{"key":"a"}`, http.StatusAccepted},
		"promql":  {stack.PromQL(t, s.redis, setting), "/api/v1/query?query=vector(1)", "", http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := c.service.URL()
			var answers atomic.Int64
			noticed, ended := make(chan struct{}), make(chan struct{})
			for range 4 {
				client := &http.Client{Transport: &http.Transport{}}
				defer client.CloseIdleConnections()
				go func() {
					defer func() { ended <- struct{}{} }()
					for {
						select {
						case <-noticed:
							return
						default:
						}
						if status, text, err := send(t.Context(), client, url+c.path, c.body); err != nil || status != c.status {
							t.Errorf("after %d answers: %d %s: %v", answers.Load(), status, text, err)
							return
						}
						answers.Add(1)
					}
				}()
			}
			stack.Eventually(t, "answers", func() (bool, string) { return answers.Load() > 20, "" })
			began := time.Now()
			c.service.Signal(syscall.SIGTERM)
			stack.Eventually(t, "/readyz to answer 503", func() (bool, string) {
				status, text, err := send(t.Context(), http.DefaultClient, url+"/readyz", "")
				return status == http.StatusServiceUnavailable && strings.Contains(text, "stopping"), text + errorOf(err)
			})
			resp, err := http.Get(url + "/healthz")
			require.NoError(t, err)
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK || !resp.Close {
				t.Errorf("/healthz: %d, and the connection is closed: %v", resp.StatusCode, resp.Close)
			}
			notReady := answers.Load()
			stack.Eventually(t, "answers of a service that is not ready", func() (bool, string) { return answers.Load() > notReady+100, "" })
			close(noticed)
			for range 4 {
				<-ended
			}
			if code := c.service.Wait(); code != 0 {
				t.Errorf("exit code %d", code)
			}
			if took := time.Since(began); took < delay {
				t.Errorf("it ended after %v", took)
			}
			t.Logf("%d answers, %d of them while it was ready", answers.Load(), notReady)
		})
	}
}

func errorOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// A program refuses a delay that nobody waits for.
func TestShutdownDelayOutOfBounds(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"query", "collect", "promql", "rls"} {
		code, out := ends(t, program, nil, "SHUTDOWN_DELAY=11m")
		if code != 2 || !strings.Contains(out, `SHUTDOWN_DELAY="11m0s": allowed is a duration from 0s to 10m`) {
			t.Errorf("%s ends with %d and %q", program, code, out)
		}
	}
}

// Certificates that are renewed in their files are used from then on, without a failed request. Files that do not
// belong together change nothing, and are told of.
func TestRenewedCertificates(t *testing.T) {
	t.Parallel()
	s := start(t)
	for name, c := range map[string]struct {
		start  func(cert, key string) *stack.Service
		path   string
		prefix string
	}{
		"query":   {func(cert, key string) *stack.Service { return stack.Query(t, s.redis, cert, key) }, "/v1/total?key=a&window=1h", "QUERY"},
		"collect": {func(cert, key string) *stack.Service { return stack.Collect(t, s.nats, cert, key) }, "/openapi.json", "COLLECT"},
		"promql":  {func(cert, key string) *stack.Service { return stack.PromQL(t, s.redis, cert, key) }, "/api/v1/query?query=vector(1)", "PROMQL"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files, next := stack.NewCertificate(t), stack.NewCertificate(t)
			service := c.start(c.prefix+"_TLS_CERT="+files.CertFile, c.prefix+"_TLS_KEY="+files.KeyFile)
			if !strings.HasPrefix(service.URL(), "https://") {
				t.Fatalf("served at %s", service.URL())
			}
			shown := func() []byte {
				conn, err := tls.Dial("tcp", service.Addr(), &tls.Config{InsecureSkipVerify: true})
				if err != nil {
					t.Errorf("handshake: %v", err)
					return nil
				}
				defer conn.Close()
				return conn.ConnectionState().PeerCertificates[0].Raw
			}
			first := shown()

			done, asked := make(chan struct{}), make(chan int)
			for keep := range 2 { // one client keeps its connection, the other makes a new one each time
				client := &http.Client{Transport: &http.Transport{DisableKeepAlives: keep == 0, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
				defer client.CloseIdleConnections()
				go func() {
					n := 0
					defer func() { asked <- n }()
					for {
						select {
						case <-done:
							return
						default:
						}
						if status, text, err := send(t.Context(), client, service.URL()+c.path, ""); err != nil || status != http.StatusOK {
							t.Errorf("%d %.200s: %v", status, text, err)
							return
						}
						n++
					}
				}()
			}
			reloaded := func(last string, ok, failed int) {
				t.Helper()
				lines := []string{
					`tallyroll_last_reload_successful{what="certificate"} ` + last + "\n",
					fmt.Sprintf(`tallyroll_reloads_total{result="failed",what="certificate"} %d`, failed) + "\n",
					fmt.Sprintf(`tallyroll_reloads_total{result="ok",what="certificate"} %d`, ok) + "\n",
				}
				stack.Eventually(t, fmt.Sprint(lines), func() (bool, string) {
					client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
					_, text, err := send(t.Context(), client, service.URL()+"/metrics", "")
					return hasAll(text, lines), linesWith(text, "reload") + errorOf(err)
				})
			}
			reloaded("1", 0, 0)

			rename(t, next.CertFile, files.CertFile) // the key is still the old one
			service.WaitForLog("certificate not reloaded")
			reloaded("0", 0, 1)
			if !bytes.Equal(shown(), first) {
				t.Error("a certificate without its key is shown")
			}
			rename(t, next.KeyFile, files.KeyFile)
			stack.Eventually(t, "the new certificate", func() (bool, string) { return !bytes.Equal(shown(), first), "" })
			reloaded("1", 1, 1)
			close(done)
			t.Logf("%d and %d requests", <-asked, <-asked)
			if n := strings.Count(service.Logs(), `"message":"certificate not reloaded`); n != 1 {
				t.Errorf("the bad pair is in the log %d times", n)
			}
		})
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	require.NoError(t, os.Rename(from, to))
}
