package stack

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// NoWait among the settings given to [Ingest], [Query], [Collect], [PromQL] and [RLS]: do not wait until
// the program is ready. It is not passed on.
const NoWait = "STACK_NO_WAIT=1"

// Terminal among the settings given to [Ingest] and [Query]: the program writes
// to a terminal of so many columns, on Linux; its Logs are all that the terminal
// was sent. It is not passed on.
func Terminal(columns int) string { return terminal + strconv.Itoa(columns) }

const terminal = "STACK_TERMINAL="

// Service is a running program that answers HTTP.
type Service struct {
	*Process
	scheme string
}

// Ingest builds and starts cmd/ingest against the given servers, either of
// which may be nil. env are further settings, KEY=value; the last one holds.
func Ingest(t testing.TB, nats, redis Endpoint, env ...string) *Service {
	t.Helper()
	return service(t, "ingest", "INGEST_ADDR", nats, redis, env)
}

// Query builds and starts cmd/query against a Redis, which may be nil, and without NATS. env are further
// settings, KEY=value; the last one holds. Its timeouts are long: no result is to depend on how busy the
// machine is.
func Query(t testing.TB, redis Endpoint, env ...string) *Service {
	t.Helper()
	// Without NATS_URL it would look for a NATS at the default port.
	return service(t, "query", "QUERY_ADDR", nil, redis, append([]string{"NATS_URL=", "QUERY_TIMEOUT=60s", "QUERY_TAKE_TIMEOUT=5s"}, env...))
}

// Collect builds and starts cmd/collect against a NATS server, which may be nil. env are
// further settings, KEY=value; the last one holds.
func Collect(t testing.TB, nats Endpoint, env ...string) *Service {
	t.Helper()
	return service(t, "collect", "COLLECT_ADDR", nats, nil, env)
}

// PromQL builds and starts cmd/promql against a Redis, which may be nil. env are
// further settings, KEY=value; the last one holds.
func PromQL(t testing.TB, redis Endpoint, env ...string) *Service {
	t.Helper()
	return service(t, "promql", "PROMQL_ADDR", nil, redis, append([]string{"PROMQL_TIMEOUT=5m"}, env...))
}

// RLS builds and starts cmd/rls against a Redis, which may be nil, and returns the address of its gRPC. env
// are further settings, KEY=value; the last one holds.
func RLS(t testing.TB, redis Endpoint, env ...string) (s *Service, grpc string) {
	t.Helper()
	grpc = address(FreePort(t))
	return service(t, "rls", "RLS_METRICS_ADDR", nil, redis, append([]string{"RLS_ADDR=" + grpc, "RLS_TAKE_TIMEOUT=5s"}, env...)), grpc
}

// Watch builds and starts cmd/watch with a file of rules against the given servers, either of which may be
// nil. env are further settings, KEY=value; the last one holds.
func Watch(t testing.TB, nats, redis Endpoint, file string, env ...string) *Service {
	t.Helper()
	return service(t, "watch", "WATCH_ADDR", nats, redis, append([]string{"WATCH_FILE=" + file}, env...))
}

func service(t testing.TB, name, addrKey string, nats, redis Endpoint, env []string) *Service {
	t.Helper()
	s := &Service{scheme: "http://"}
	wait := !slices.Contains(env, NoWait)
	env = slices.DeleteFunc(slices.Clone(env), func(e string) bool { return e == NoWait })
	if !strings.HasSuffix(addrKey, "_METRICS_ADDR") && slices.ContainsFunc(env, func(e string) bool {
		key, value, _ := strings.Cut(e, "=")
		return strings.HasSuffix(key, "_TLS_CERT") && value != ""
	}) {
		s.scheme = "https://"
	}
	columns := 0
	env = slices.DeleteFunc(env, func(e string) bool {
		value, is := strings.CutPrefix(e, terminal)
		if is {
			columns, _ = strconv.Atoi(value)
		}
		return is
	})
	var servers []string
	if nats != nil {
		servers = append(servers, "NATS_URL="+nats.URL())
	}
	if redis != nil {
		servers = append(servers, RedisEnv(redis)...)
	}
	s.Process = newProcess(t, name, Build(t, name), func(port int) (args, all []string) {
		return nil, slices.Concat([]string{addrKey + "=" + address(port)}, servers, env)
	})
	s.columns = columns
	if wait {
		s.ready = s.answers
	}
	s.Start()
	return s
}

// URL is the address of the program's HTTP server, without a slash at the end.
func (s *Service) URL() string { return s.scheme + s.Addr() }

// WaitReady waits until /readyz answers 200, for a program started with [NoWait].
func (s *Service) WaitReady() {
	s.t.Helper()
	r := s.running("wait for")
	require.NoErrorf(s.t, poll(Hung, r.done, s.answers), "waiting for %s to be ready", s.name)
}

// probe asks programs whether they are ready; their certificates are the tests' own.
var probe = &http.Client{
	Timeout:   2 * time.Second,
	Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
}

func (s *Service) answers() (bool, string) {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, s.URL()+"/readyz", nil)
	if err != nil {
		return false, err.Error()
	}
	resp, err := probe.Do(req)
	if err != nil {
		return false, err.Error()
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	return resp.StatusCode == http.StatusOK, resp.Status + ": " + string(body)
}
