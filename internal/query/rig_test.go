package query

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"tallyroll/internal/answer"
	"tallyroll/internal/boot"
	"tallyroll/internal/limit"
	"tallyroll/internal/web"
	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

const namespace = "test"

// testNow is half way through the running minute, so that a window of whole
// minutes cuts a cell of a minute in two. It is near the real time because Redis
// expires cells by its own clock.
func testNow() time.Time { return time.Now().UTC().Truncate(time.Minute).Add(30 * time.Second) }

func testLayout(t testing.TB) window.Layout {
	t.Helper()
	tiers, err := window.ParseTiers("1m/1h,1h/1d")
	if err != nil {
		t.Fatal(err)
	}
	return window.Layout{Tiers: tiers, Shards: 4}
}

// sample is n hits of a counter at a moment.
type sample struct {
	key string
	at  time.Time
	n   int64
}

// seed counts hits as a worker would, and says that the stream is counted up to asOf.
func seed(t testing.TB, client redis.UniversalClient, asOf time.Time, hits ...sample) {
	t.Helper()
	ctx, layout, store := t.Context(), testLayout(t), window.NewStore(client, namespace)
	if err := store.EnsureLayout(ctx, layout); err != nil {
		t.Fatal(err)
	}
	if err := store.AddStream(ctx, "HITS"); err != nil {
		t.Fatal(err)
	}
	commit(t, store, layout, asOf, 1, hits)
}

// late counts hits that come after those of seed.
func late(t testing.TB, client redis.UniversalClient, asOf time.Time, hits ...sample) {
	t.Helper()
	commit(t, window.NewStore(client, namespace), testLayout(t), asOf, 2, hits)
}

func commit(t testing.TB, store *window.Store, layout window.Layout, asOf time.Time, seq uint64, hits []sample) {
	t.Helper()
	ctx, batch := t.Context(), window.NewBatch(layout)
	for _, h := range hits {
		batch.Add([]byte(h.key), window.HashCounter([]byte(h.key)), h.at.UnixMilli(), asOf.UnixMilli(), h.n)
	}
	cursor := window.Cursor{
		Created: asOf.Add(-12 * time.Hour).UnixNano(), Seq: seq, Stored: asOf.UnixNano(), AsOf: asOf.UnixMilli(),
	}
	for shard := range layout.Shards {
		w, err := store.OpenWriter(ctx, layout, "HITS", shard)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Commit(ctx, batch.Shard(shard), cursor); err != nil {
			t.Fatal(err)
		}
	}
}

var testSettings = Settings{MaxKeys: 1000, MaxProbe: 500, MaxSum: 1000, MaxExplain: 5000, LiveClients: 100, LiveQuestions: 500, Take: TakeAny}

// onRedis is a service that reads a Redis whose clock stands at now.
func onRedis(t testing.TB, url string, now time.Time) *service {
	t.Helper()
	var u boot.RedisURL
	if err := u.UnmarshalText([]byte(url)); err != nil {
		t.Fatal(err)
	}
	client := boot.Redis{URL: u, Namespace: namespace}.Client()
	t.Cleanup(func() { _ = client.Close() })
	stack.WatchClock(client).Hold(&now)
	reader := window.NewReader(window.NewStore(client, namespace))
	reader.Local = func() time.Time { return now }
	limits := limitsFor(t, limit.New(client, namespace, patience), testSettings)
	return newService(reader, reader, limits, testSettings, zerolog.Nop())
}

// readFrom has the service answer requests from another reader.
func readFrom(s *service, r allReader) { s.answers.Reader, s.gate.counters, s.status.reader = r, r, r }

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
	running.Go(func() { _ = s.health.run(ctx) })
	running.Go(func() { _ = s.live.hub.run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
}

// fakeReader answers without Redis, and checks questions as the real one does.
type fakeReader struct {
	layout window.Layout
	now    time.Time
	err    error

	estimate window.Estimate // what Fall finds
	falls    time.Duration

	mu    sync.Mutex // the hub asks beside the requests
	asked []window.Question
}

func (f *fakeReader) questions() []window.Question {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked
}

func (f *fakeReader) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = nil
}

func (f *fakeReader) Look(context.Context) (window.Layout, error) { return f.layout, nil }

func (f *fakeReader) ClockDifference() (time.Duration, bool) { return 0, false }

func (f *fakeReader) Progress(context.Context) (string, []window.Progress, error) {
	at := f.now.UnixMilli()
	return "id", []window.Progress{{Stream: "HITS", Counted: true, Applied: 1, Stored: at * 1e6, AsOf: at}}, f.err
}

// plan refuses what the real reader would.
func (f *fakeReader) plan(span window.Span) (window.Plan, error) {
	now := f.now.UnixMilli()
	asked, err := span.At(now)
	if err != nil {
		return window.Plan{}, err
	}
	return f.layout.Plan("a", asked, now)
}

func (f *fakeReader) Answer(_ context.Context, questions []window.Question) (window.Answers, error) {
	f.mu.Lock()
	f.asked = questions
	f.mu.Unlock()
	if f.err != nil {
		return window.Answers{}, f.err
	}
	out := window.Answers{Now: f.now.UnixMilli(), AsOf: f.now.UnixMilli(), Answers: make([]window.Answer, len(questions))}
	for i, q := range questions {
		plan, err := f.plan(q.Span)
		if err != nil {
			return window.Answers{}, &window.QuestionError{Index: i, Err: err}
		}
		out.Answers[i] = window.Answer{Range: plan.Range, Tier: plan.Tier, Complete: true, CountingSince: answer.SinceExample.UnixMilli()}
	}
	return out, nil
}

func (f *fakeReader) Explain(ctx context.Context, questions []window.Question, _ int) (window.Answers, []window.Explanation, error) {
	out, err := f.Answer(ctx, questions)
	return out, make([]window.Explanation, len(out.Answers)), err
}

func (f *fakeReader) Fall(ctx context.Context, counter string, length time.Duration, most int64) (window.Answers, time.Duration, error) {
	out, err := f.Answer(ctx, []window.Question{{Counter: counter, Span: window.Last(length)}})
	if err != nil {
		return out, 0, err
	}
	out.Answers[0].Estimate = f.estimate
	if f.estimate.Total <= most {
		return out, 0, nil
	}
	return out, f.falls, nil
}

func (f *fakeReader) Series(_ context.Context, questions []window.SeriesQuestion) ([]window.Series, error) {
	if f.err != nil {
		return nil, f.err
	}
	out := make([]window.Series, len(questions))
	for i, q := range questions {
		f.mu.Lock()
		f.asked = append(f.asked, window.Question{Counter: q.Counter, Span: q.Span})
		f.mu.Unlock()
		plan, err := f.plan(q.Span)
		if err != nil {
			return nil, &window.QuestionError{Index: i, Err: err}
		}
		step := max(q.Step, plan.Tier.Cell)
		out[i] = window.Series{
			Range: plan.Range, Asked: plan.Range, Step: step, Counts: []int64{1, 2}, Tier: plan.Tier,
			Now: f.now.UnixMilli(), AsOf: f.now.UnixMilli(), Complete: true,
		}
	}
	return out, nil
}

func (f *fakeReader) Top(_ context.Context, asked window.Span, _ int) (window.Top, error) {
	if f.err != nil {
		return window.Top{}, f.err
	}
	if _, err := f.plan(asked); err != nil {
		return window.Top{}, &window.QuestionError{Err: err}
	}
	return window.Top{AsOf: f.now.UnixMilli(), Floor: 3, Counters: []window.TopCounter{{Counter: "a", Answer: window.Answer{Estimate: window.Estimate{Total: 5, Lower: 4, Upper: 6}}}}}, nil
}

func (f *fakeReader) Names(_ context.Context, _ window.NamesQuestion) (window.Names, error) {
	return window.Names{AsOf: f.now.UnixMilli()}, f.err
}

func (f *fakeReader) About(context.Context) (window.Layout, int64, error) {
	return f.layout, answer.SinceExample.UnixMilli(), f.err
}

// fakeNow is when the documented examples were asked.
var fakeNow = time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)

func onFake(t testing.TB) (*service, *fakeReader) {
	t.Helper()
	f := &fakeReader{layout: testLayout(t), now: fakeNow}
	s := newService(f, f, limitsFor(t, &fakeLimiter{}, testSettings), testSettings, zerolog.Nop())
	s.now = func() time.Time { return fakeNow }
	return s, f
}

func ask1(h http.Handler, method, target, body string, headers ...string) *http.Response {
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	r := httptest.NewRequest(method, "http://tallyroll.test/", reader)
	// Requests arrive with any bytes in their query; NewRequest would panic at some.
	path, query, _ := strings.Cut(target, "?")
	r.URL.Path, r.URL.RawQuery, r.RequestURI = path, query, target
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

// answered decodes an answer that must have status 200.
func answered(t testing.TB, resp *http.Response) answer.TotalAnswer {
	t.Helper()
	data := readAll(t, resp)
	var out answer.TotalAnswer
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d: %s", resp.StatusCode, data)
	}
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatalf("answer %s: %v", data, err)
	}
	return out
}

// refused decodes a problem with the given status.
func refused(t testing.TB, resp *http.Response, status int) web.Problem {
	t.Helper()
	data := readAll(t, resp)
	if resp.StatusCode != status || resp.Header.Get("Content-Type") != web.ProblemType {
		t.Fatalf("status %d %s, want %d %s: %s", resp.StatusCode, resp.Header.Get("Content-Type"), status, web.ProblemType, data)
	}
	var out web.Problem
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatalf("problem %s: %v", data, err)
	}
	if out.Status != status || out.Detail == "" || !listed(out) {
		t.Errorf("problem %+v, want status, detail, and type and title of a kind of %d", out, status)
	}
	return out
}

func readAll(t testing.TB, resp *http.Response) []byte {
	t.Helper()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// listed reports whether a problem is of a kind that the page lists.
func listed(p web.Problem) bool {
	return slices.ContainsFunc(web.Kinds(), func(k *web.Kind) bool {
		return k.Type() == p.Type && k.Status == p.Status && cmp.Or(k.Title, http.StatusText(k.Status)) == p.Title
	})
}
