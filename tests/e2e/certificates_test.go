package e2e_test

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// clientWith shows a certificate if there is one.
func clientWith(t *testing.T, c *stack.Certificate, keepAlive bool) *http.Client {
	t.Helper()
	config := &tls.Config{InsecureSkipVerify: true}
	if c != nil {
		pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		require.NoError(t, err)
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil } // whatever the server asks for
		config.ClientSessionCache = tls.NewLRUClientSessionCache(4)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: !keepAlive, TLSClientConfig: config}}
	t.Cleanup(client.CloseIdleConnections)
	return client
}

// A client without a certificate of the authority does not get past the handshake, whatever the path. The
// health of the program can be asked without one at the address of its metrics. Certificates and authorities
// that are renewed in their files are used from then on, without a failed request. Files that cannot be used
// change nothing, and are reported.
func TestCertificatesAreDemandedAndRenewed(t *testing.T) {
	t.Parallel()
	s := start(t)
	for name, c := range map[string]struct {
		start func(env ...string) *stack.Service
		path  string
	}{
		"query":   {func(env ...string) *stack.Service { return stack.Query(t, s.redis, env...) }, "/v1/total?key=a&window=1h"},
		"collect": {func(env ...string) *stack.Service { return stack.Collect(t, s.nats, env...) }, "/openapi.json"},
		"promql":  {func(env ...string) *stack.Service { return stack.PromQL(t, s.redis, env...) }, "/api/v1/query?query=vector(1)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			prefix := strings.ToUpper(name)
			files, next, ours, other := stack.NewCertificate(t), stack.NewCertificate(t), stack.NewCertificate(t), stack.NewCertificate(t)
			authority := file(t, "ca.pem", read(t, ours.CertFile))
			status := fmt.Sprintf("127.0.0.1:%d", stack.FreePort(t))
			env := []string{
				prefix + "_TLS_CERT=" + files.CertFile, prefix + "_TLS_KEY=" + files.KeyFile, prefix + "_TLS_CLIENT_CA=" + authority,
				prefix + "_METRICS_ADDR=" + status,
			}
			service := c.start(append(env, stack.NoWait)...)
			for _, path := range []string{"/readyz", "/healthz", "/metrics"} {
				eventuallySays(t, "http://"+status+path, http.StatusOK, "")
			}
			if code, out := runToEnd(t, name, []string{"--healthcheck"}, append(env, prefix+"_ADDR="+service.Addr())...); code != 0 {
				t.Errorf("--healthcheck ends with %d and %q", code, out)
			}
			none, right, wrong := clientWith(t, nil, false), clientWith(t, &ours, false), clientWith(t, &other, false)
			answers := func(client *http.Client) (bool, string) {
				status, text := request(client, http.MethodGet, service.URL()+c.path, "")
				return status == http.StatusOK, text
			}
			refused := func(client *http.Client, path string) {
				t.Helper()
				if status, text := request(client, http.MethodGet, service.URL()+path, ""); status != 0 || !strings.Contains(text, "certificate") {
					t.Errorf("%s answers %d %s", path, status, text)
				}
			}
			for range 2 { // a second time with a session to resume, if the server gave one
				ok, text := answers(right)
				require.True(t, ok, text)
			}
			for _, path := range []string{c.path, "/healthz", "/"} {
				refused(none, path)
				refused(wrong, path)
			}

			done, asked := make(chan struct{}), make(chan int)
			for _, client := range []*http.Client{right, clientWith(t, &ours, true)} {
				go func() {
					n := 0
					defer func() { asked <- n }()
					for {
						select {
						case <-done:
							return
						default:
						}
						if ok, text := answers(client); !ok {
							t.Errorf("a request while files are renewed: %s", text)
							return
						}
						n++
					}
				}()
			}
			shown := func() string {
				conn, err := tls.Dial("tcp", service.Addr(), &tls.Config{InsecureSkipVerify: true})
				require.NoError(t, err)
				defer conn.Close()
				return string(conn.ConnectionState().PeerCertificates[0].Raw)
			}
			reloaded := func(last, ok, failed int) {
				t.Helper()
				lines := []string{
					fmt.Sprintf("tallyroll_last_reload_successful{what=\"certificate\"} %d\n", last),
					fmt.Sprintf("tallyroll_reloads_total{result=\"failed\",what=\"certificate\"} %d\n", failed),
					fmt.Sprintf("tallyroll_reloads_total{result=\"ok\",what=\"certificate\"} %d\n", ok),
				}
				stack.Eventually(t, fmt.Sprint(lines), func() (bool, string) {
					_, text := request(http.DefaultClient, http.MethodGet, "http://"+status+"/metrics", "")
					return hasAll(text, lines), linesWith(text, "reload")
				})
			}
			first := shown()
			reloaded(1, 0, 0)
			require.NoError(t, os.Rename(next.CertFile, files.CertFile)) // the key is still the old one
			reloaded(0, 0, 1)
			require.Equal(t, first, shown(), "a certificate without its key")
			require.NoError(t, os.Rename(next.KeyFile, files.KeyFile))
			reloaded(1, 1, 1)
			require.NotEqual(t, first, shown())
			close(done)
			for range 2 {
				require.NotZero(t, <-asked, "answers to a client")
			}

			write(t, authority, "no certificate")
			reloaded(0, 1, 2)
			ok, text := answers(right)
			require.True(t, ok, text)
			write(t, authority, read(t, other.CertFile))
			stack.Eventually(t, "the second authority", func() (bool, string) { return answers(wrong) })
			refused(right, c.path) // not even with the session that it has
			require.Equal(t, 2, strings.Count(service.Logs(), `"message":"certificate not reloaded`), "once per bad file")
		})
	}
}
