package clients_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"tallyroll/tests/stack"
)

// demoLimits returns the setting of the limits of make run, which has those that the examples name.
func demoLimits(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../cmd/dev/limits.yml")
	require.NoError(t, err)
	return "QUERY_LIMITS_FILE=" + path
}

// serverExamples are those that serve HTTP, by language, with what runs them.
var serverExamples = []struct{ name, program, middleware, webhook string }{
	{"go", "go", "go/middleware", "go/webhook"},
	{"python", "python3", "python/middleware.py", "python/webhook.py"},
	{"typescript", "node", "typescript/middleware.ts", "typescript/webhook.ts"},
}

// lockedBuffer holds what an example prints.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// startExample starts an example that serves HTTP, and waits until it answers.
func startExample(t *testing.T, path string, env ...string) (url string, out, errs *lockedBuffer) {
	t.Helper()
	addr := fmt.Sprintf("127.0.0.1:%d", stack.FreePort(t))
	cmd := example(t, path, nil, append(env, "ADDR="+addr)...)
	out, errs = new(lockedBuffer), new(lockedBuffer)
	cmd.Stdout, cmd.Stderr = out, errs
	require.NoError(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	url = "http://" + addr + "/"
	stack.Eventually(t, path+" to answer", func() (bool, string) {
		select {
		case <-ended:
			t.Fatalf("%s has ended: %s", path, errs)
		default:
		}
		response, err := http.Head(url)
		if err != nil {
			return false, err.Error() + errs.String()
		}
		response.Body.Close()
		return true, ""
	})
	return url, out, errs
}

// askAs sends a request to a service with a middleware, for the key of a client.
func askAs(t *testing.T, url, key string) (status int, header http.Header, body string) {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, url, nil)
	require.NoError(t, err)
	request.Header.Set("X-Api-Key", key)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, response.Header, string(text)
}

// A middleware passes on what the limit decides, with its headers. If it gets no decision, its fail mode
// decides, and the client sees nothing of a mistake in the question.
func TestMiddlewarePassesDecisionsOn(t *testing.T) {
	t.Parallel()
	query := stack.Query(t, stack.SharedRedis(t), demoLimits(t))
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		<-r.Context().Done() // until the client gives up
	}))
	t.Cleanup(silent.Close)
	for _, the := range serverExamples {
		t.Run(the.name, func(t *testing.T) {
			need(t, the.program)
			url, _, _ := startExample(t, the.middleware, "TALLYROLL_URL="+query.URL(), "FAIL=closed")
			attempt := 0
			stack.Eventually(t, "six decisions that come in time", func() (bool, string) {
				attempt++
				for i := range 6 {
					status, header, body := askAs(t, url, fmt.Sprint(the.name, attempt))
					if status == http.StatusServiceUnavailable {
						return false, body
					}
					require.Contains(t, header.Get("RateLimit-Policy"), `"login";q=5;w=60`, body)
					if i == 5 {
						require.Equal(t, http.StatusTooManyRequests, status, body)
						require.NotEmpty(t, header.Get("Retry-After"))
						continue
					}
					require.Equal(t, http.StatusOK, status, body)
					require.Equal(t, "hello\n", body)
					require.Contains(t, header.Get("RateLimit"), fmt.Sprintf("r=%d", 4-i))
				}
				return true, ""
			})
			url, _, _ = startExample(t, the.middleware, "TALLYROLL_URL="+query.URL(), "FAIL=open")
			for _, odd := range []string{"a\tb", strings.Repeat("k", 600), "caf\xe9", "caf\u00e9"} {
				odd += the.name
				stack.Eventually(t, fmt.Sprintf("the limit of %.20q", odd), func() (bool, string) {
					status, _, body := askAs(t, url, odd)
					return status == http.StatusTooManyRequests, body
				})
				status, _, body := askAs(t, query.URL()+"/v1/authz?limit=login&key_header=X-Api-Key", odd)
				require.Equal(t, http.StatusTooManyRequests, status, "%.20q has another key in query: %s", odd, body)
			}
			for name, env := range map[string][]string{
				"no answer":         {"TALLYROLL_URL=" + silent.URL, "LIMIT=login"},
				"no such limit":     {"TALLYROLL_URL=" + query.URL(), "LIMIT=other"},
				"no such Tallyroll": {fmt.Sprintf("TALLYROLL_URL=http://127.0.0.1:%d", stack.FreePort(t)), "LIMIT=login"},
			} {
				for mode, want := range map[string]int{"open": http.StatusOK, "closed": http.StatusServiceUnavailable} {
					if name == "no such limit" {
						want = http.StatusServiceUnavailable // the question is wrong
					}
					url, _, errs := startExample(t, the.middleware, append(env, "FAIL="+mode)...)
					stack.Eventually(t, name+", "+mode, func() (bool, string) { // a refusal may come too late
						status, _, body := askAs(t, url, "k")
						return status == want, fmt.Sprintf("%d %s", status, body)
					})
					require.Contains(t, errs.String(), "no decision of the limit", name)
				}
			}
		})
	}
}

// Examples use a connection for many requests, so ports do not run out under load.
func TestExamplesKeepTheirConnections(t *testing.T) {
	t.Parallel()
	for _, the := range []struct{ path, program string }{
		{"go/middleware", "go"}, {"typescript/middleware.ts", "node"}, {"python/middleware.py", "python3"},
		{"go/llmproxy", "go"}, {"python/llmproxy.py", "python3"},
	} {
		t.Run(the.path, func(t *testing.T) {
			t.Parallel()
			need(t, the.program)
			var opened, answered atomic.Int64
			tallyroll := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				answered.Add(1)
				fmt.Fprint(w, `{"usage":{"total_tokens":1}}`)
			}))
			tallyroll.Config.ConnState = func(_ net.Conn, state http.ConnState) {
				if state == http.StateNew {
					opened.Add(1)
				}
			}
			tallyroll.Start()
			t.Cleanup(tallyroll.Close)
			url, _, _ := startExample(t, the.path, "TALLYROLL_URL="+tallyroll.URL, "UPSTREAM="+tallyroll.URL)
			const clients, requests = 20, 20
			// On a busy machine an answer that is too late costs its connection, so a round may need too many.
			stack.Eventually(t, "requests that share their connections", func() (bool, string) {
				before, after := opened.Load(), answered.Load()+clients*requests
				var group errgroup.Group
				for range clients {
					group.Go(func() error {
						for range requests {
							if status, _, err := stack.Do(http.MethodPost, url, map[string]any{"max_tokens": 1}); err != nil || status != http.StatusOK {
								return fmt.Errorf("status %d: %w", status, err)
							}
						}
						return nil
					})
				}
				require.NoError(t, group.Wait())
				used := opened.Load() - before
				return answered.Load() >= after && used < clients*requests/4, fmt.Sprintf("%d connections, %d of %d answers", used, answered.Load(), after)
			})
		})
	}
}

// A receiver handles a change once, and refuses what is not signed by its secret, or was signed long ago.
func TestWebhookReceiversVerifyWhatTheyHandle(t *testing.T) {
	t.Parallel()
	secret := []byte("0123456789abcdef01234567")
	send := func(url, id string, at time.Time, body string, key []byte) int {
		t.Helper()
		stamp := strconv.FormatInt(at.Unix(), 10)
		mac := hmac.New(sha256.New, key)
		fmt.Fprintf(mac, "%s.%s.%s", id, stamp, body)
		request, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
		require.NoError(t, err)
		request.Header.Set("webhook-id", id)
		request.Header.Set("webhook-timestamp", stamp)
		request.Header.Set("webhook-signature", "v1,b2xk v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		response.Body.Close()
		return response.StatusCode
	}
	for _, the := range serverExamples {
		t.Run(the.name, func(t *testing.T) {
			need(t, the.program)
			url, out, _ := startExample(t, the.webhook, "SECRET=whsec_"+base64.StdEncoding.EncodeToString(secret))
			now := time.Now()
			for range 2 {
				require.Equal(t, http.StatusOK, send(url, "1", now, `{"rule":"a"}`, secret))
			}
			require.Equal(t, http.StatusUnauthorized, send(url, "2", now, `{"rule":"forged"}`, []byte("another secret")))
			require.Equal(t, http.StatusUnauthorized, send(url, "3", now.Add(-time.Hour), `{"rule":"old"}`, secret))
			require.Equal(t, http.StatusOK, send(url, "5", now, `{"rule":"b"}`, secret))
			stack.Eventually(t, "both changes to be handled", func() (bool, string) {
				return strings.HasSuffix(out.String(), "{\"rule\":\"b\"}\n"), out.String() // Python writes the end by itself
			})
			require.Equal(t, "{\"rule\":\"a\"}\n{\"rule\":\"b\"}\n", out.String())
		})
	}
}
