package e2e_test

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// clientWith makes a new connection for each request, and shows a certificate if there is one.
func clientWith(t *testing.T, c *stack.Certificate) *http.Client {
	t.Helper()
	config := &tls.Config{InsecureSkipVerify: true}
	if c != nil {
		pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		require.NoError(t, err)
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil } // whatever the server asks for
		config.ClientSessionCache = tls.NewLRUClientSessionCache(4)
	}
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: config}}
}

// Who shows no certificate of the authority does not get past the handshake, whatever the path. The health of the
// program can be asked without one at the address of its metrics.
func TestClientCertificates(t *testing.T) {
	t.Parallel()
	s := start(t)
	for name, c := range map[string]struct {
		start        func(env ...string) *stack.Service
		path, prefix string
	}{
		"query":   {func(env ...string) *stack.Service { return stack.Query(t, s.redis, env...) }, "/v1/total?key=a&window=1h", "QUERY"},
		"collect": {func(env ...string) *stack.Service { return stack.Collect(t, s.nats, env...) }, "/openapi.json", "COLLECT"},
		"promql":  {func(env ...string) *stack.Service { return stack.PromQL(t, s.redis, env...) }, "/api/v1/query?query=vector(1)", "PROMQL"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			own, ours, other := stack.NewCertificate(t), stack.NewCertificate(t), stack.NewCertificate(t)
			metrics := fmt.Sprintf("127.0.0.1:%d", stack.FreePort(t))
			authority := filepath.Join(t.TempDir(), "ca.pem")
			write(t, authority, readFile(t, ours.CertFile))
			env := []string{c.prefix + "_TLS_CERT=" + own.CertFile, c.prefix + "_TLS_KEY=" + own.KeyFile, c.prefix + "_TLS_CLIENT_CA=" + authority}
			service := c.start(append(env, c.prefix+"_METRICS_ADDR="+metrics, stack.NoWait)...)
			none, right, wrong := clientWith(t, nil), clientWith(t, &ours), clientWith(t, &other)
			for _, path := range []string{"/readyz", "/healthz", "/metrics"} {
				stack.Eventually(t, path, func() (bool, string) {
					status, text, err := send(t.Context(), none, "http://"+metrics+path, "")
					return status == http.StatusOK, text + errorOf(err)
				})
			}
			ask := func(client *http.Client, path string) (bool, string) {
				status, text, err := send(t.Context(), client, service.URL()+path, "")
				return err == nil && status == http.StatusOK, fmt.Sprintf("%d %.200s %v", status, text, err)
			}
			for range 2 { // a second time with a session to resume, if the server gave one
				if ok, got := ask(right, c.path); !ok {
					t.Errorf("with a certificate: %s", got)
				}
			}
			for what, client := range map[string]*http.Client{"no certificate": none, "one of another authority": wrong} {
				for _, path := range []string{c.path, "/healthz", "/"} {
					if _, got := ask(client, path); !strings.HasPrefix(got, "0 ") || !strings.Contains(got, "certificate") {
						t.Errorf("with %s, %s answers %s", what, path, got)
					}
				}
			}

			check := append(env, c.prefix+"_ADDR="+service.Addr())
			if code, out := ends(t, name, []string{"--healthcheck"}, append(check, c.prefix+"_METRICS_ADDR="+metrics)...); code != 0 {
				t.Errorf("--healthcheck ends with %d and %q", code, out)
			}
			if code, out := ends(t, name, []string{"--healthcheck"}, check...); code != 1 || !strings.Contains(out, c.prefix+"_METRICS_ADDR") {
				t.Errorf("--healthcheck without an address for it ends with %d and %q", code, out)
			}

			// Another authority: who had a certificate of the first has none any more, not even with a session of before.
			write(t, authority, "no certificate")
			service.WaitForLog("certificate not reloaded")
			if ok, got := ask(right, c.path); !ok {
				t.Errorf("with a file of authorities that cannot be used: %s", got)
			}
			write(t, authority, readFile(t, other.CertFile))
			stack.Eventually(t, "the second authority", func() (bool, string) { return ask(wrong, c.path) })
			if _, got := ask(right, c.path); !strings.HasPrefix(got, "0 ") {
				t.Errorf("with a certificate of the authority of before: %s", got)
			}

			for _, bad := range []struct{ env, want string }{
				{c.prefix + "_TLS_CLIENT_CA=" + authority, c.prefix + "_TLS_CERT"},
				{c.prefix + "_TLS_CLIENT_CA=/none", c.prefix + "_TLS_CERT"},
			} {
				if code, out := ends(t, name, nil, bad.env); code != 2 || !strings.HasPrefix(out, name+": "+c.prefix+"_TLS_CLIENT_CA=") || !strings.Contains(out, bad.want) {
					t.Errorf("%s: it ends with %d and %q", bad.env, code, out)
				}
			}
			for path, want := range map[string]string{"/none": "no such file", own.KeyFile: "there is none in it"} {
				if code, out := ends(t, name, nil, append(env, c.prefix+"_TLS_CLIENT_CA="+path)...); code != 2 || !strings.HasPrefix(out, name+": "+c.prefix+"_TLS_CLIENT_CA=") || !strings.Contains(out, want) {
					t.Errorf("%s: it ends with %d and %q", path, code, out)
				}
			}
		})
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}
