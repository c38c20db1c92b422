// Package e2e_test proves the main job from outside: it builds the programs,
// starts real servers, publishes, kills, and asks.
package e2e_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

func TestMain(m *testing.M) { stack.Main(m) }

// system is the whole of Tallyroll on its own servers, so the tests run side by side.
type system struct {
	t      *testing.T
	redis  *stack.RedisServer
	nats   *stack.NATSEmbedded
	ingest *stack.Service
	query  *stack.Service
	js     jetstream.JetStream
}

// startServers starts NATS and Redis without a program.
func startServers(t *testing.T) *system {
	t.Helper()
	s := &system{t: t, redis: stack.Redis(t), nats: stack.NATS(t)}
	s.js = s.nats.JetStream()
	return s
}

// start starts servers, a worker, and a query service without NATS.
func start(t *testing.T, ingestEnv ...string) *system {
	t.Helper()
	s := startServers(t)
	s.ingest = stack.Ingest(t, s.nats, s.redis, ingestEnv...)
	s.query = stack.Query(t, s.redis)
	return s
}

// startQuery starts a query service with NATS.
func (s *system) startQuery(env ...string) *stack.Service {
	s.t.Helper()
	return stack.Query(s.t, s.redis, append([]string{"NATS_URL=" + s.nats.URL()}, env...)...)
}

// begin starts a program that ends by itself. wait returns its standard output, and fails the test if it
// failed.
func (s *system) begin(program string, stdin io.Reader, args ...string) (cmd *exec.Cmd, wait func() string) {
	s.t.Helper()
	cmd = stack.Command(s.t.Context(), s.t, program, args, []string{"NATS_URL=" + s.nats.URL(), "REDIS_URL=" + s.redis.URL()})
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &errs
	require.NoError(s.t, cmd.Start())
	return cmd, func() string {
		s.t.Helper()
		require.NoErrorf(s.t, cmd.Wait(), "%s %v: %s%s", program, args, &out, &errs)
		return out.String()
	}
}

// publish runs the publish program on an input and returns its output.
func (s *system) publish(stdin io.Reader, args ...string) string {
	s.t.Helper()
	_, wait := s.begin("publish", stdin, args...)
	return wait()
}

// redrive runs the program redrive and returns its output.
func (s *system) redrive(args ...string) string {
	s.t.Helper()
	_, wait := s.begin("redrive", nil, args...)
	return wait()
}

// send publishes one message and waits until it is stored.
func (s *system) send(subject, body string) *jetstream.PubAck {
	s.t.Helper()
	ack, err := s.js.Publish(s.t.Context(), subject, []byte(body))
	require.NoErrorf(s.t, err, "publish to %s", subject)
	return ack
}

// awaitTotal waits until the total of a counter over a day is want.
func (s *system) awaitTotal(key string, want int64) stack.Total {
	s.t.Helper()
	return stack.EventuallyTotal(s.t, s.query.URL(), key, "24h", want)
}

// awaitTotals waits until the totals of counters over a day are those.
func (s *system) awaitTotals(want map[string]int64) {
	s.t.Helper()
	for key, n := range want {
		s.awaitTotal(key, n)
	}
}

// awaitAllCounted waits until every shard has counted all that is stored by now.
func (s *system) awaitAllCounted() {
	s.t.Helper()
	stored := time.Now()
	stack.Eventually(s.t, "all shards to have counted what is stored", func() (bool, string) {
		asOf := ask[topList](s, "/v1/top", url.Values{"window": {"1h"}}).AsOf
		return asOf.After(stored), asOf.String()
	})
}

// loseRedis removes all that Redis holds.
func (s *system) loseRedis() {
	s.t.Helper()
	require.NoError(s.t, s.redis.Client().FlushAll(s.t.Context()).Err())
}

func (s *system) createStream(name string, subjects ...string) jetstream.Stream {
	s.t.Helper()
	stream, err := s.js.CreateStream(s.t.Context(), jetstream.StreamConfig{Name: name, Subjects: subjects})
	require.NoError(s.t, err)
	return stream
}

// countRejects is how many messages HITS_REJECTED holds.
func (s *system) countRejects() uint64 {
	s.t.Helper()
	stream, err := s.js.Stream(s.t.Context(), "HITS_REJECTED")
	require.NoError(s.t, err)
	return stream.CachedInfo().State.Msgs
}

// awaitRejects waits until HITS_REJECTED holds n messages.
func (s *system) awaitRejects(n uint64) {
	s.t.Helper()
	stack.Eventually(s.t, fmt.Sprintf("%d rejects", n), func() (bool, string) {
		held := s.countRejects()
		return held == n, fmt.Sprint(held)
	})
}

// ask gets an answer of the query service.
func ask[T any](s *system, path string, params url.Values) T {
	s.t.Helper()
	var out T
	status, body, err := stack.Do(http.MethodGet, s.query.URL()+path+"?"+params.Encode(), nil)
	require.NoError(s.t, err)
	require.Equalf(s.t, http.StatusOK, status, "%s?%s: %s", path, params.Encode(), body)
	require.NoErrorf(s.t, json.Unmarshal(body, &out), "%s", body)
	return out
}

// eventuallyAnswers asks until the answer is fine.
func eventuallyAnswers[A any](t *testing.T, address, what string, fine func(A) bool) (out A) {
	t.Helper()
	stack.Eventually(t, what, func() (bool, string) {
		status, body, err := stack.Do(http.MethodGet, address, nil)
		if err != nil || status != http.StatusOK {
			return false, fmt.Sprint(status, string(body), err)
		}
		out = *new(A)
		err = json.Unmarshal(body, &out)
		return err == nil && fine(out), fmt.Sprint(string(body), err)
	})
	return out
}

// eventuallySays asks until the answer has the status and the text.
func eventuallySays(t *testing.T, address string, status int, text string) {
	t.Helper()
	stack.Eventually(t, fmt.Sprintf("%s to answer %d with %s", address, status, text), func() (bool, string) {
		got, body := request(http.DefaultClient, http.MethodGet, address, "")
		return got == status && strings.Contains(body, text), fmt.Sprint(got, body)
	})
}

// request sends a request with headers, name and value in turn. Without an answer, the status is 0 and the
// text the error.
func request(client *http.Client, method, address, body string, headers ...string) (status int, text string) {
	status, text, _ = requestHeader(client, method, address, body, headers...)
	return status, text
}

// requestHeader is request with the answer's headers.
func requestHeader(client *http.Client, method, address, body string, headers ...string) (status int, text string, header http.Header) {
	req, err := http.NewRequest(method, address, strings.NewReader(body))
	if err != nil {
		return 0, err.Error(), nil
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header[headers[i]] = append(req.Header[headers[i]], headers[i+1])
	}
	if host := req.Header["Host"]; host != nil {
		req.Host = host[0]
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err.Error(), nil
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error(), nil
	}
	return resp.StatusCode, string(answer), resp.Header
}

// post sends hits to collect.
func post(collect *stack.Service, body string, headers ...string) (status int, text string) {
	return request(http.DefaultClient, http.MethodPost, collect.URL()+"/v1/hits", body, headers...)
}

// metrics are those of a service.
func metrics(t *testing.T, service *stack.Service) string {
	t.Helper()
	status, text, err := stack.Do(http.MethodGet, service.URL()+"/metrics", nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status)
	return string(text)
}

// runToEnd runs a program that is expected to end by itself.
func runToEnd(t *testing.T, name string, args []string, env ...string) (code int, output string) {
	t.Helper()
	return runToEndWith(t, name, nil, args, env...)
}

// runToEndWith is ends with an input.
func runToEndWith(t *testing.T, name string, stdin io.Reader, args []string, env ...string) (code int, output string) {
	t.Helper()
	cmd := stack.Command(t.Context(), t, name, args, env)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &out
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String()
}

// file writes a file into a directory of its own.
func file(t *testing.T, name, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	write(t, path, text)
	return path
}

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

func hasAll(text string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}

// linesWith are the lines that have one of the parts, without comments.
func linesWith(text string, parts ...string) string {
	var out []string
	for line := range strings.Lines(text) {
		for _, part := range parts {
			if strings.Contains(line, part) && !strings.HasPrefix(line, "#") {
				out = append(out, strings.TrimSpace(line))
			}
		}
	}
	return fmt.Sprint(out)
}
