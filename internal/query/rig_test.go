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

	"tallyroll/internal/access"
	"tallyroll/internal/answer"
	"tallyroll/internal/boot"
	"tallyroll/internal/gate"
	"tallyroll/internal/limit"
	"tallyroll/internal/window"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

var testSettings = Settings{MaxKeys: 1000, MaxProbe: 500, MaxSum: 1000, LiveClients: 100, LiveQuestions: 500, MaxExports: 2, Take: gate.TakeAny, Erase: true, Timeout: stack.Hung}

// made is a service with testLimits, and further ones.
func made(t testing.TB, r access.Counters, l gate.Limiter, settings Settings, further ...string) *service {
	t.Helper()
	settings.LimitsFile = filepath.Join(t.TempDir(), "limits.yml")
	require.NoError(t, os.WriteFile(settings.LimitsFile, []byte(testLimits+strings.Join(further, "")), 0o600))
	return newServiceFor(t, r, l, settings)
}

func newServiceFor(t testing.TB, r access.Counters, l gate.Limiter, settings Settings) *service {
	t.Helper()
	s, err := newService(r, r, l, settings, zerolog.Nop())
	require.NoError(t, err)
	return s
}

// onRedis is a service that reads a Redis whose clock stands at now.
func onRedis(t testing.TB, url string, now time.Time) *service {
	t.Helper()
	return onRedisWith(t, url, now, testSettings)
}

func onRedisWith(t testing.TB, url string, now time.Time, settings Settings) *service {
	t.Helper()
	var u boot.RedisURL
	require.NoError(t, u.UnmarshalText([]byte(url)))
	client := boot.Redis{URL: u, Namespace: asking.Namespace}.Client()
	t.Cleanup(func() { _ = client.Close() })
	stack.WatchClock(client).Hold(&now)
	reader := window.NewReader(window.NewStore(client, asking.Namespace))
	reader.Local = func() time.Time { return now }
	return made(t, reader, limit.New(client, asking.Namespace, stack.Hung), settings)
}

// holdClock has the clock of the service's machine stand.
func holdClock(s *service, at time.Time) {
	s.status.Now = func() time.Time { return at }
}

// readFrom has the service answer requests from another reader.
func readFrom(s *service, r access.Counters) {
	bounded := access.NewReader(r)
	s.answers.Reader, s.gate.Counters, s.status.Reader = bounded, bounded, r
}

// useTokens has the service ask for one of the tokens.
func useTokens(t testing.TB, s *service, tokens string) {
	t.Helper()
	s.tokens = tokensOf(t, tokens)
}

// tokensOf are the tokens of a setting.
func tokensOf(t testing.TB, tokens string) *access.Tokens {
	t.Helper()
	settings := access.Settings{Program: "QUERY"}
	if tokens != "" {
		require.NoError(t, settings.Plain.UnmarshalText([]byte(tokens)))
	}
	out, err := access.New(settings, nil)
	require.NoError(t, err)
	return out
}

// watched runs the service's health and its hub until the test ends.
func watched(t testing.TB, s *service) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = s.health.Run(ctx) })
	running.Go(func() { _ = s.live.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
}

func onFake(t testing.TB) (*service, *asking.FakeReader) {
	t.Helper()
	return onFakeWith(t, &fakeLimiter{}, testSettings)
}

func onFakeWith(t testing.TB, l gate.Limiter, settings Settings, further ...string) (*service, *asking.FakeReader) {
	t.Helper()
	f := &asking.FakeReader{Layout: asking.Layout(t), Now: asking.FakeNow}
	s := impatient(made(t, f, l, settings, further...)) // nothing can hang
	holdClock(s, asking.FakeNow)
	return s, f
}

// firstEvent is the data of the first event that somebody hears who listens at /v1/live.
func firstEvent(t testing.TB, h http.Handler, query string) string {
	t.Helper()
	server := httptest.NewServer(h)
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/v1/live?"+query, nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			return data
		}
	}
	t.Fatalf("status %d, and no event: %v", resp.StatusCode, lines.Err())
	return ""
}

// answered decodes an answer that must have status 200.
func answered(t testing.TB, resp *http.Response) answer.TotalAnswer {
	t.Helper()
	data := asking.ReadAll(t, resp)
	require.Equalf(t, http.StatusOK, resp.StatusCode, "%s", data)
	var out answer.TotalAnswer
	require.NoErrorf(t, json.Unmarshal(data, &out), "answer %s", data)
	return out
}

// testLimits are what tests, and the documentation, find in QUERY_LIMITS_FILE.
const testLimits = `limits:
  - {name: login, window: 1m, max: 5, policy: log}
  - {name: per-second, window: 1s, max: 10}
  - {name: per-hour, window: 1h, max: 1000, fail: open}
  - {name: closed, window: 1h, max: 2, fail: closed}
  - {name: per-route, window: 1m, max: 3, key: "{method} {host} {path} {key}"}
  - {name: per-address, window: 1m, max: 3, key: "a {ip}"}
  - {name: per-agent, window: 1m, max: 3, key: "{header.User-Agent}"}
  - {name: exports, policy: concurrent, max: 2, window: 30s}
  - {name: tried, window: 1m, max: 3, mode: shadow}
  - {name: shared, window: 1m, max: 1000, share: {hits: 100, for: 2s}}
`

// fakeLimiter remembers what it is asked, and answers that.
type fakeLimiter struct {
	asked  []limit.Take
	reset  []limit.Take
	looked bool
	err    error
	states []limit.Decision // of the takes; allowed if there are none
	lost   bool             // leases are not held any more
}

func (f *fakeLimiter) Take(_ context.Context, takes []limit.Take) (limit.Answer, error) {
	f.asked, f.looked = takes, false
	return f.answer(takes)
}

func (f *fakeLimiter) Look(_ context.Context, takes []limit.Take) (limit.Answer, error) {
	f.asked, f.looked = takes, true
	return f.answer(takes)
}

func (f *fakeLimiter) Reset(_ context.Context, take limit.Take) error {
	f.reset = append(f.reset, take)
	return f.err
}

func (f *fakeLimiter) Renew(_ context.Context, take limit.Take) (limit.Lease, error) {
	f.asked = []limit.Take{take}
	if f.lost {
		return limit.Lease{Source: limit.FromRedis}, f.err
	}
	return limit.Lease{Held: true, Ends: asking.FakeNow.Add(take.Limit.Window), EndsIn: take.Limit.Window, Source: limit.FromRedis}, f.err
}

func (f *fakeLimiter) Release(_ context.Context, take limit.Take) (bool, error) {
	f.asked = []limit.Take{take}
	return !f.lost, f.err
}

func (f *fakeLimiter) Reserved() map[string]int64 { return map[string]int64{"shared": 7} }

func (f *fakeLimiter) answer(takes []limit.Take) (limit.Answer, error) {
	out := limit.Answer{Allowed: true}
	for i, take := range takes {
		d := limit.Decision{Allowed: true, Certain: true, Remaining: take.Limit.Max - take.N, Source: limit.FromRedis}
		if i < len(f.states) {
			d = f.states[i]
		}
		if !d.Shadow {
			d.WouldAllow = d.Allowed
		}
		d.Take = take
		out.Decisions = append(out.Decisions, d)
		out.Allowed = out.Allowed && d.Allowed
	}
	return out, f.err
}
