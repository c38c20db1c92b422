package query

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/limit"
	"tallyroll/internal/query/answer"
	"tallyroll/internal/query/answer/scope"
	"tallyroll/internal/query/limitapi"
	"tallyroll/internal/web/access"
	"tallyroll/internal/window/erase"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/apitest"
	"tallyroll/tests/stack"
)

// testLimits are in QUERY_LIMITS_FILE.
const testLimits = `limits:
  - {name: login, window: 1m, max: 5, policy: log}
  - {name: per-hour, window: 1h, max: 1000, fail: open}
  - {name: per-agent, window: 1m, max: 3, key: "{header.User-Agent}"}
  - {name: target, window: 1m, max: 3, key: "{method} {host} {path} {header.X-Strange}"}
  - {name: exports, policy: concurrent, max: 2, window: 30s}
`

// serve returns a service with testLimits. The settings of tests allow more than the defaults, and can be
// changed.
func serve(t testing.TB, r scope.Counters, l limitapi.Limiter, change ...func(*Settings)) *service {
	t.Helper()
	settings := Settings{
		MaxKeys: 1000, MaxProbe: 500, MaxSum: 1000, LiveClients: 100, LiveQuestions: 500, MaxExports: 2,
		Take: limitapi.TakeAny, Erase: true,
		Timeout: stack.Hung, LimitsFile: filepath.Join(t.TempDir(), "limits.yml"),
	}
	require.NoError(t, os.WriteFile(settings.LimitsFile, []byte(testLimits), 0o600))
	for _, c := range change {
		c(&settings)
	}
	s, err := newService(r, r, l, settings, zerolog.Nop())
	require.NoError(t, err)
	return s
}

// serveRedis returns a service that reads a Redis whose clock stands at now.
func serveRedis(t testing.TB, url string, now time.Time, change ...func(*Settings)) *service {
	t.Helper()
	client := stack.ProgramClient(t, url)
	stack.WatchClock(client).Hold(&now)
	reader := read.NewReader(schema.NewStore(client, apitest.Namespace))
	reader.Local = func() time.Time { return now }
	return serve(t, erase.Eraser{Reader: reader}, limit.New(client, apitest.Namespace, stack.Hung), change...)
}

// fakeService is a service without Redis.
type fakeService struct {
	*service
	reader  *apitest.FakeReader
	limiter *fakeLimiter
}

func serveFake(t testing.TB, change ...func(*Settings)) fakeService {
	t.Helper()
	f := fakeService{reader: &apitest.FakeReader{Layout: apitest.Layout(t), Now: apitest.FakeNow},
		limiter: new(fakeLimiter)}
	f.service = serve(t, f.reader, f.limiter, change...)
	f.status.Now = func() time.Time { return apitest.FakeNow }
	return f
}

// shortenTimeouts sets the default timeouts: the service then refuses questions while a server hangs.
func shortenTimeouts(s *service) {
	s.questions.Redis.Timeout, s.health.Timeout = 2*time.Second, 2*time.Second
}

// countNamed has a service count takes of named limits only.
func countNamed(s *Settings) { s.Take = limitapi.TakeNamed }

// setReader has the service answer requests from another reader.
func setReader(s *service, r scope.Counters) {
	bounded := scope.Authorize(r)
	s.questions.Reader, s.limits.Counters, s.status.Reader = bounded, bounded, r
}

// setTokens has the service ask for one of the tokens.
func setTokens(t testing.TB, s *service, tokens string) {
	t.Helper()
	settings := access.TokenSettings{Program: "QUERY"}
	if tokens != "" {
		require.NoError(t, settings.Plain.UnmarshalText([]byte(tokens)))
	}
	var err error
	s.middleware.tokens, err = access.New(settings, nil)
	require.NoError(t, err)
}

// runHealth runs the service's health and its hub until the test ends.
func runHealth(t testing.TB, s *service) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = s.health.Run(ctx) })
	running.Go(func() { _ = s.live.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
}

// startServer serves on a real connection until the test ends.
func startServer(t testing.TB, h http.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server
}

// send asks a server. Headers are names and values by turns; the answer is not decompressed.
func send(t testing.TB, server *httptest.Server, method, target, body string, headers ...string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, server.URL+target, strings.NewReader(body))
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		if r.Header.Add(headers[i], headers[i+1]); headers[i] == "Host" {
			r.Host = headers[i+1]
		}
	}
	client := *server.Client()
	transport := client.Transport.(*http.Transport).Clone()
	transport.DisableCompression = true
	client.Transport = transport
	resp, err := client.Do(r)
	require.NoError(t, err)
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// firstEvent is the data of the first event that a client at /v1/live receives.
func firstEvent(t testing.TB, h http.Handler, query string) string {
	t.Helper()
	resp := send(t, startServer(t, h), http.MethodGet, "/v1/live?"+query, "")
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			resp.Body.Close()
			return data
		}
	}
	t.Fatalf("status %d, and no event: %v", resp.StatusCode, lines.Err())
	return ""
}

// get is the body of an answer, whatever its status.
func get(t testing.TB, h http.Handler, target string, headers ...string) string {
	t.Helper()
	return string(apitest.ReadBody(t, apitest.Send(h, http.MethodGet, target, "", headers...)))
}

// requireTotals decodes totals, which must have status 200.
func requireTotals(t testing.TB, resp *http.Response) []answer.Total {
	t.Helper()
	data := apitest.ReadBody(t, resp)
	require.Equalf(t, http.StatusOK, resp.StatusCode, "%s", data)
	var out answer.TotalAnswer
	require.NoErrorf(t, json.Unmarshal(data, &out), "answer %s", data)
	return out.Totals
}

// fakeLimiter allows everything, and keeps what it was asked last.
type fakeLimiter struct {
	asked []limit.Take
	err   error
}

func (f *fakeLimiter) Take(_ context.Context, takes []limit.Take) (limit.Answer, error) {
	f.asked = takes
	out := limit.Answer{Allowed: true}
	for _, take := range takes {
		out.Decisions = append(out.Decisions,
			limit.Decision{Take: take, Allowed: true, WouldAllow: true, Certain: true,
				Remaining: take.Limit.Max - take.N, Source: limit.SourceRedis})
	}
	return out, f.err
}

func (f *fakeLimiter) Look(ctx context.Context, takes []limit.Take) (limit.Answer, error) {
	return f.Take(ctx, takes)
}

func (f *fakeLimiter) Reset(_ context.Context, take limit.Take) error {
	f.asked = []limit.Take{take}
	return f.err
}

func (f *fakeLimiter) Renew(_ context.Context, take limit.Take) (limit.Lease, error) {
	f.asked = []limit.Take{take}
	return limit.Lease{Held: true, Ends: apitest.FakeNow.Add(take.Limit.Window), EndsIn: take.Limit.Window, Source: limit.SourceRedis}, f.err
}

func (f *fakeLimiter) Release(_ context.Context, take limit.Take) (bool, error) {
	f.asked = []limit.Take{take}
	return true, f.err
}

func (f *fakeLimiter) Settle(_ context.Context, takes []limit.Take) (out limit.Answer, err error) {
	f.asked = takes
	for _, take := range takes {
		out.Decisions = append(out.Decisions, limit.Decision{Take: take, Settled: &take.N, Remaining: take.Limit.Max - take.N, Source: limit.SourceRedis})
	}
	return out, f.err
}

func (f *fakeLimiter) Reserved() map[string]int64 { return map[string]int64{} }
