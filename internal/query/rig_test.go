package query

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"tallyroll/internal/answer"
	"tallyroll/internal/boot"
	"tallyroll/internal/limit"
	"tallyroll/internal/window"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

var testSettings = Settings{MaxKeys: 1000, MaxProbe: 500, MaxSum: 1000, MaxExplain: 5000, LiveClients: 100, LiveQuestions: 500, Take: TakeAny}

// onRedis is a service that reads a Redis whose clock stands at now.
func onRedis(t testing.TB, url string, now time.Time) *service {
	t.Helper()
	var u boot.RedisURL
	if err := u.UnmarshalText([]byte(url)); err != nil {
		t.Fatal(err)
	}
	client := boot.Redis{URL: u, Namespace: asking.Namespace}.Client()
	t.Cleanup(func() { _ = client.Close() })
	stack.WatchClock(client).Hold(&now)
	reader := window.NewReader(window.NewStore(client, asking.Namespace))
	reader.Local = func() time.Time { return now }
	limits := limitsFor(t, limit.New(client, asking.Namespace, patience), testSettings)
	return newService(reader, reader, limits, testSettings, zerolog.Nop())
}

// holdClock has the clock of the service's machine stand.
func holdClock(s *service, at time.Time) {
	s.now = func() time.Time { return at }
	s.status.Now = s.now
}

// readFrom has the service answer requests from another reader.
func readFrom(s *service, r allReader) { s.answers.Reader, s.gate.counters, s.status.Reader = r, r, r }

// limited bounds the cells and points that the service reads for one request.
func limited(t testing.TB, s *service, cells, points int64) {
	t.Helper()
	r, ok := s.answers.Reader.(*window.Reader)
	if !ok {
		t.Fatalf("the service reads %T", s.answers.Reader)
	}
	r.MaxCells, r.MaxPoints = cells, points
}

// watched runs the service's health and its hub until the test ends.
func watched(t testing.TB, s *service) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = s.health.Run(ctx) })
	running.Go(func() { _ = s.live.hub.run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
}

func onFake(t testing.TB) (*service, *asking.FakeReader) {
	t.Helper()
	f := &asking.FakeReader{Layout: asking.Layout(t), Now: asking.FakeNow}
	s := newService(f, f, limitsFor(t, &fakeLimiter{}, testSettings), testSettings, zerolog.Nop())
	holdClock(s, asking.FakeNow)
	return s, f
}

// answered decodes an answer that must have status 200.
func answered(t testing.TB, resp *http.Response) answer.TotalAnswer {
	t.Helper()
	data := asking.ReadAll(t, resp)
	var out answer.TotalAnswer
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d: %s", resp.StatusCode, data)
	}
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatalf("answer %s: %v", data, err)
	}
	return out
}
