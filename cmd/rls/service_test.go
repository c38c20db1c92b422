package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthservice "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"tallyroll/tests/stack"
)

const oneLimit = "limits:\n- {name: one, window: 1h, max: 1000, envoy: {domain: edge, descriptor: [{key: user}]}}\n"

// limitOf is the name of the limit of a descriptor.
func (r *rig) limitOf(d *ratelimit.RateLimitDescriptor) string {
	r.t.Helper()
	return r.ask(d).Statuses[0].CurrentLimit.GetName()
}

// SIGHUP reads the file again. A bad file changes nothing, and the metric and the log say so.
func TestLimitsAreReloaded(t *testing.T) {
	t.Parallel()
	r := start(t, stack.Redis(t), oneLimit)
	metric := func(line string) {
		t.Helper()
		stack.Eventually(t, line, func() (bool, string) {
			_, text, err := stack.Do(http.MethodGet, r.URL()+"/metrics", nil)
			return err == nil && strings.Contains(string(text), line+"\n"), ""
		})
	}
	user := descriptor("user=a")
	require.Equal(t, "one", r.limitOf(user), "the limit")
	r.write("limits:\n- {name: two, window: 1h, max: 1000, envoy: {domain: edge, descriptor: [{key: usr}]}}\n- {name: three, max: 1}\n")
	r.Signal(syscall.SIGHUP)
	metric(`tallyroll_last_reload_successful{what="limits"} 0`)
	r.WaitForLog("line 3: window: missing")
	require.Equal(t, "one", r.limitOf(user), "after a bad file the limit")
	r.write("limits:\n- {name: two, window: 1h, max: 1000, envoy: [{domain: edge, descriptor: [{key: other}]}, {domain: edge, descriptor: [{key: user}]}]}\n")
	r.Signal(syscall.SIGHUP)
	metric(`tallyroll_last_reload_successful{what="limits"} 1`)
	metric(`tallyroll_reloads_total{result="ok",what="limits"} 1`)
	require.Equal(t, "twotwo", r.limitOf(user)+r.limitOf(descriptor("other=a")), "after a good file the limits are")
	// Without a limit for Envoy there is nothing to decide, and a balancer should know.
	r.write("limits:\n- {name: http, window: 1h, max: 5}\n")
	r.Signal(syscall.SIGHUP)
	stack.Eventually(t, "not ready", func() (bool, string) {
		code, text, err := stack.Do(http.MethodGet, r.URL()+"/readyz", nil)
		return err == nil && code == http.StatusServiceUnavailable && strings.Contains(string(text), "no limit of RLS_LIMITS_FILE has envoy"), string(text)
	})
	require.Equal(t, "OK: OK", codesOf(r.ask(user)), "without limits")
}

// Bad settings end the program with exit code 2 and a line that says what is allowed.
func TestBadSettingsEndTheProgram(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "limits.yml")
	require.NoError(t, os.WriteFile(file, []byte("limits:\n- {name: a, window: 1h, max: 5, envoy: {domain: edge}}\n"), 0o600))
	for _, c := range []struct{ env, want string }{
		{"LOG_LEVEL=info", "rls: RLS_LIMITS_FILE: must be a YAML file of limits"},
		{"RLS_LIMITS_FILE=/none", "rls: RLS_LIMITS_FILE: open /none: no such file"},
		{"RLS_LIMITS_FILE=" + file, "line 2: descriptor: missing: envoy must have it"},
		{"RLS_ADDR=8083", `rls: RLS_ADDR="8083": must be host:port`},
		{"RLS_METRICS_ADDR=x", `rls: RLS_METRICS_ADDR="x": must be host:port`},
		{"RLS_TAKE_TIMEOUT=1m", `rls: RLS_TAKE_TIMEOUT="1m0s": must be a duration from 1ms to 5s`},
		{"RLS_MAX_CONNECTIONS=0", `rls: RLS_MAX_CONNECTIONS="0": must be a whole number from 1 on`},
		{"RLS_MAX_STREAMS=-1", `rls: RLS_MAX_STREAMS="-1": must be a whole number from 1 on`},
		{"RLS_MAX_MESSAGE_BYTES=0", `rls: RLS_MAX_MESSAGE_BYTES="0": must be a whole number from 1 to 8388608`},
		{"RLS_TLS_CERT=x", `rls: RLS_TLS_CERT="x": must be set together with RLS_TLS_KEY`},
		{"TALLYROLL_NAMESPACE=a:b", `rls: TALLYROLL_NAMESPACE="a:b"`},
	} {
		env := []string{c.env}
		if !strings.HasPrefix(c.env, "RLS_LIMITS_FILE") && c.env != "LOG_LEVEL=info" {
			env = append(env, "RLS_LIMITS_FILE="+file)
		}
		out, err := stack.Command(t.Context(), t, "rls", nil, env).CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(string(out), c.want) {
			t.Errorf("%s: %v %s, want %s", c.env, err, out, c.want)
		}
	}
}

// Clients that know nothing of the authority, or that it does not know, get past no handshake. The
// certificate and the authority are read again when they change. Health is asked for over plain HTTP.
func TestTLSDemandsKnownCertificates(t *testing.T) {
	t.Parallel()
	own, client, other := stack.NewCertificate(t), stack.NewCertificate(t), stack.NewCertificate(t)
	authority := filepath.Join(t.TempDir(), "ca.pem")
	replace := func(with stack.Certificate) {
		t.Helper()
		text, err := os.ReadFile(with.CertFile)
		if err == nil {
			err = os.WriteFile(authority, text, 0o600)
		}
		require.NoError(t, err)
	}
	replace(client)
	r := start(t, stack.Redis(t), oneLimit, "RLS_TLS_CERT="+own.CertFile, "RLS_TLS_KEY="+own.KeyFile, "RLS_TLS_CLIENT_CA="+authority)
	trusted := x509.NewCertPool()
	text, err := os.ReadFile(own.CertFile)
	if err != nil || !trusted.AppendCertsFromPEM(text) {
		t.Fatal(err)
	}
	ask := func(with *stack.Certificate) error {
		config := &tls.Config{RootCAs: trusted}
		if with != nil {
			pair, err := tls.LoadX509KeyPair(with.CertFile, with.KeyFile)
			require.NoError(t, err)
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
		}
		ctx, cancel := context.WithTimeout(t.Context(), stack.Hung)
		defer cancel()
		_, err := rls.NewRateLimitServiceClient(dial(t, r.addr, credentials.NewTLS(config))).ShouldRateLimit(ctx, &rls.RateLimitRequest{Domain: "edge", Descriptors: []*ratelimit.RateLimitDescriptor{descriptor("user=a")}})
		return err
	}
	require.NoError(t, ask(&client), "with a certificate")
	for name, with := range map[string]*stack.Certificate{"none": nil, "another authority's": &other} {
		if err := ask(with); status.Code(err) != codes.Unavailable { // whether it hears of the alert is up to chance
			t.Errorf("with the certificate %s: %v", name, err)
		}
	}
	if _, err := r.send(&rls.RateLimitRequest{Domain: "edge"}); status.Code(err) != codes.Unavailable {
		t.Errorf("without TLS: %v", err)
	}
	replace(other)
	stack.Eventually(t, "the second authority", func() (bool, string) {
		err := ask(&other)
		return err == nil, fmt.Sprint(err)
	})
	if err := ask(&client); status.Code(err) != codes.Unavailable {
		t.Errorf("with a certificate of the authority of before: %v", err)
	}
	out, err := stack.Command(t.Context(), t, "rls", []string{"--healthcheck"}, []string{"RLS_METRICS_ADDR=" + r.Addr(), "RLS_TLS_CERT=" + own.CertFile, "RLS_TLS_CLIENT_CA=" + authority}).CombinedOutput()
	require.NoErrorf(t, err, "--healthcheck: %s", out)
}

// Profiles, metrics and health are at one address, and gRPC alone at the other. While it leaves, the service
// answers, and says to both kinds of probes that it is leaving.
func TestServiceAnswersWhileItLeaves(t *testing.T) {
	t.Parallel()
	r := start(t, stack.Redis(t), oneLimit, "SHUTDOWN_DELAY=5m")
	probe := healthservice.NewHealthClient(dial(t, r.addr, insecure.NewCredentials()))
	serves := func(want healthservice.HealthCheckResponse_ServingStatus) {
		t.Helper()
		for _, name := range []string{"", "envoy.service.ratelimit.v3.RateLimitService"} {
			stack.Eventually(t, "health of "+name, func() (bool, string) {
				out, err := probe.Check(t.Context(), &healthservice.HealthCheckRequest{Service: name})
				return err == nil && out.Status == want, fmt.Sprint(out, err)
			})
		}
	}
	serves(healthservice.HealthCheckResponse_SERVING)
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/debug/pprof/heap"} {
		status, _, err := stack.Do(http.MethodGet, r.URL()+path, nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, status, path)
	}
	if resp, err := http.Get("http://" + r.addr + "/healthz"); err == nil {
		_ = resp.Body.Close()
		t.Errorf("HTTP/1.1 at the address of gRPC: %s", resp.Status)
	}
	r.Signal(syscall.SIGTERM)
	serves(healthservice.HealthCheckResponse_NOT_SERVING)
	if status, _, err := stack.Do(http.MethodGet, r.URL()+"/readyz", nil); err != nil || status != http.StatusServiceUnavailable {
		t.Errorf("/readyz: %d %v", status, err)
	}
	require.Equal(t, "OK: OK", codesOf(r.ask(descriptor("user=a"))), "while it leaves")
}

// A request that is under way when the service stops is finished.
func TestStopFinishesRequests(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	r := start(t, redis, oneLimit)
	r.ask(descriptor("user=a"))
	redis.Pause()
	ended := make(chan string, 1)
	go func() {
		out, err := r.send(&rls.RateLimitRequest{Domain: "edge", Descriptors: []*ratelimit.RateLimitDescriptor{descriptor("user=a")}})
		ended <- fmt.Sprint(codesOf(out), err)
	}()
	stack.Eventually(t, "the request in Redis's queue", func() (bool, string) { // only Redis lets it wait
		_, text, err := stack.Do(http.MethodGet, r.URL()+"/debug/pprof/goroutine?debug=2", nil)
		return err == nil && strings.Contains(string(text), "limit.(*Limiter).Take"), ""
	})
	r.Signal(syscall.SIGTERM)
	r.WaitForLog(`"started"`)
	redis.Resume()
	require.Equal(t, "OK: OK<nil>", <-ended, "the request under way")
	require.EqualValues(t, 0, r.Wait(), "it ends with")
}

// A request that is too large is refused, and the next one on the same connection is answered.
func TestRequestThatIsTooLargeIsRefused(t *testing.T) {
	t.Parallel()
	r := start(t, stack.Redis(t), oneLimit, "RLS_MAX_CONNECTIONS=1", "RLS_MAX_MESSAGE_BYTES=1000")
	large := descriptor("user=" + strings.Repeat("x", 1000))
	if _, err := r.send(&rls.RateLimitRequest{Domain: "edge", Descriptors: []*ratelimit.RateLimitDescriptor{large}}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a large request: %v", err)
	}
	require.Equal(t, "OK: OK", codesOf(r.ask(descriptor("user=a"))), "a request after it")
}

// With the user that deploy/redis-users.acl has for it, the program can do all that it does, and read nothing
// else.
func TestUserOfTheDocsHasTheRightsItNeeds(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	stack.NewUser(t, redis, "rls", "secret", stack.RightsOf(t, "rls")...)
	limits := "limits:\n"
	policies := []string{"cells", "log", "stream"}
	for _, policy := range policies {
		limits += fmt.Sprintf("- {name: %s, window: 1h, max: 5, policy: %[1]s, fail: closed, envoy: {domain: edge, descriptor: [{key: %[1]s}]}}\n", policy)
	}
	r := start(t, nil, limits, "REDIS_URL=redis://rls:secret@"+redis.Addr()+"/0")
	for _, policy := range policies {
		for i, c := range []struct {
			n    int64
			want string
		}{{3, "OK: OK"}, {2, "OK: OK"}, {1, "OVER_LIMIT: OVER_LIMIT"}, {-4, "OK: OK"}, {0, "OK: OK"}, {-1, "OK: OK"}, {4, "OK: OK"}} {
			require.Equal(t, c.want, codesOf(r.ask(hits(descriptor(policy+"=a"), c.n))), "%s, request %d", policy, i)
		}
	}
}

// A user that may not write keys of limits is named in the log, and what is closed stays closed.
func TestMissingRightsAreLogged(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	stack.NewUser(t, redis, "promql", "secret", stack.RightsOf(t, "promql")...)
	r := start(t, nil, limitsOfFailModes, "REDIS_URL=redis://promql:secret@"+redis.Addr()+"/0")
	_, err := r.send(&rls.RateLimitRequest{Domain: "edge", Descriptors: []*ratelimit.RateLimitDescriptor{descriptor("local=a")}})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "may not count takes") {
		t.Errorf("the error is %v", err)
	}
	r.WaitForLog("NOPERM")
	if got := codesOf(r.ask(descriptor("closed=a"), descriptor("local=a"))); got != "OVER_LIMIT: OVER_LIMIT UNKNOWN" {
		t.Errorf("a limit that is closed: %s", got)
	}
}
