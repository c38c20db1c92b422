// Package apitest has what tests of packages that answer questions share: a Redis with hits in it, a reader
// that needs none, and requests with their answers and problems.
package apitest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/query/answer"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
	"tallyroll/internal/window"
	"tallyroll/internal/window/erase"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/windowtest"
)

const Namespace = "test"

// Now is half way through the running minute, so that a window of whole
// minutes cuts a cell of a minute in two. It is near the real time because Redis
// expires cells by its own clock.
func Now() time.Time { return time.Now().UTC().Truncate(time.Minute).Add(30 * time.Second) }

func Layout(t testing.TB) window.Layout {
	t.Helper()
	tiers, err := window.ParseTiers("1m/1h,1h/1d")
	require.NoError(t, err)
	uniqueTiers, err := window.ParseUniqueTiers(window.DefaultUniqueTiers)
	require.NoError(t, err)
	return window.Layout{Tiers: tiers, UniqueTiers: uniqueTiers, Shards: 4}
}

// Sample is n hits of a counter at a moment.
type Sample struct {
	Key string
	At  time.Time
	N   int64
}

// NewSample are n hits of a counter at a moment.
func NewSample(key string, at time.Time, n int64) Sample { return Sample{key, at, n} }

// Seed counts hits as a worker would, and says that the stream is counted up to asOf.
func Seed(t testing.TB, client redis.UniversalClient, asOf time.Time, hits ...Sample) {
	t.Helper()
	ctx, layout, store := t.Context(), Layout(t), schema.NewStore(client, Namespace)
	require.NoError(t, store.EnsureLayout(ctx, layout))
	require.NoError(t, store.AddStream(ctx, "HITS"))
	Commit(t, store, layout, asOf, 1, hits)
}

// SeedLate counts hits that come after those of Seed.
func SeedLate(t testing.TB, client redis.UniversalClient, asOf time.Time, hits ...Sample) {
	t.Helper()
	Commit(t, schema.NewStore(client, Namespace), Layout(t), asOf, 2, hits)
}

// SeedUniques puts unique values of a counter into the unique cells of a moment, as a worker does with hits
// that say who came.
func SeedUniques(t testing.TB, client redis.UniversalClient, key string, at time.Time, who ...string) {
	t.Helper()
	windowtest.AddVisitors(t, client, Layout(t).UniqueTiers, key, at, who...)
}

func Commit(t testing.TB, store *schema.Store, layout window.Layout, asOf time.Time, seq uint64, hits []Sample) {
	t.Helper()
	batch := window.NewBatch(layout)
	for _, h := range hits {
		windowtest.AddHits(batch, h.Key, h.At.UnixMilli(), asOf.UnixMilli(), h.N)
	}
	cursor := window.Cursor{
		Created: asOf.Add(-12 * time.Hour).UnixNano(), Seq: seq, Stored: asOf.UnixNano(), AsOf: asOf.UnixMilli(),
	}
	require.NoError(t, windowtest.CommitAll(t.Context(), store, layout, "HITS", batch, cursor))
}

// FakeReader answers without Redis, and checks questions as the real one does.
type FakeReader struct {
	Layout window.Layout
	Now    time.Time
	Err    error

	mu    sync.Mutex // the hub asks at the same time as the requests
	asked []window.Question
}

func (f *FakeReader) Questions() []window.Question {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked
}

func (f *FakeReader) Forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = nil
}

func (f *FakeReader) Look(context.Context) (window.Layout, error) { return f.Layout, nil }

func (f *FakeReader) ClockDifference() (time.Duration, bool) { return 0, false }

func (f *FakeReader) Progress(context.Context) (read.Reach, error) {
	at := f.Now.UnixMilli()
	return read.Reach{Id: "id", Layout: f.Layout, Now: at, AsOf: at, Streams: []read.Progress{{Stream: "HITS", Counted: true, Applied: 1, Stored: at * 1e6, AsOf: at}}}, f.Err
}

// plan refuses what the real reader would.
func (f *FakeReader) plan(span window.Span) (window.Plan, error) {
	now := f.Now.UnixMilli()
	asked, err := span.At(now)
	if err != nil {
		return window.Plan{}, err
	}
	return f.Layout.Plan("a", asked, now)
}

func (f *FakeReader) Answer(_ context.Context, questions []window.Question) (window.Answers, error) {
	f.mu.Lock()
	f.asked = questions
	f.mu.Unlock()
	if f.Err != nil {
		return window.Answers{}, f.Err
	}
	out := window.Answers{Now: f.Now.UnixMilli(), AsOf: f.Now.UnixMilli(), Answers: make([]window.Answer, len(questions))}
	for i, q := range questions {
		plan, err := f.plan(q.Span)
		if err != nil {
			return window.Answers{}, &window.QuestionError{Index: i, Err: err}
		}
		out.Answers[i] = window.Answer{Range: plan.Range, Tier: plan.Tier, Complete: true, CountingSince: answer.SinceExample.UnixMilli()}
	}
	return out, nil
}

func (f *FakeReader) Fall(ctx context.Context, counter string, length time.Duration, _ int64) (window.Answers, time.Duration, error) {
	out, err := f.Answer(ctx, []window.Question{{Counter: counter, Span: window.Last(length)}})
	return out, 0, err
}

func (f *FakeReader) Series(_ context.Context, questions []window.SeriesQuestion) ([]window.Series, error) {
	if f.Err != nil {
		return nil, f.Err
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
			Now: f.Now.UnixMilli(), AsOf: f.Now.UnixMilli(), Complete: true,
		}
	}
	return out, nil
}

// Uniques finds as many as Answer does hits.
func (f *FakeReader) Uniques(ctx context.Context, questions []window.Question) (window.Answers, error) {
	return f.Answer(ctx, questions)
}

// UniqueSeries finds what Series does, with bounds.
func (f *FakeReader) UniqueSeries(ctx context.Context, questions []window.SeriesQuestion) ([]window.Series, error) {
	out, err := f.Series(ctx, questions)
	for i := range out {
		for _, n := range out[i].Counts {
			out[i].Bounds = append(out[i].Bounds, [2]int64{n, n + 1})
		}
	}
	return out, err
}

func (f *FakeReader) SeriesSums(ctx context.Context, q window.SeriesQuestion, _ []string, _ func(string) string, _ int) (out read.SeriesSums, err error) {
	found, err := f.Series(ctx, []window.SeriesQuestion{q})
	if err == nil {
		out.All = found[0]
	}
	return out, err
}

func (f *FakeReader) Top(_ context.Context, asked window.Span, _ int, _ ...string) (read.Top, error) {
	if f.Err != nil {
		return read.Top{}, f.Err
	}
	if _, err := f.plan(asked); err != nil {
		return read.Top{}, &window.QuestionError{Err: err}
	}
	return read.Top{AsOf: f.Now.UnixMilli(), Floor: 3, Counters: []read.TopCounter{{Counter: "a", Answer: window.Answer{Estimate: window.Estimate{Total: 5, Lower: 4, Upper: 6}}}}}, nil
}

func (f *FakeReader) Names(_ context.Context, _ read.NamesQuestion) (read.Names, error) {
	return read.Names{AsOf: f.Now.UnixMilli()}, f.Err
}

func (f *FakeReader) BeginExport(_ context.Context, q read.ExportQuestion) (read.Export, error) {
	hour, end := time.Hour.Milliseconds(), f.Now.Truncate(time.Hour).UnixMilli()
	return read.Export{Prefix: q.Prefix, Range: window.Range{From: end - hour, To: end}, Step: time.Hour}, f.Err
}

func (f *FakeReader) ExportPage(_ context.Context, e read.Export, at read.ExportPlace) (read.ExportPage, error) {
	out := read.ExportPage{AsOf: f.Now.UnixMilli(), Complete: true, Next: read.ExportPlace{Counter: "a"}}
	if at.Counter < "a" {
		out.Rows = []read.ExportRow{{Counter: "a", From: e.Range.From, Hits: 3}}
	}
	return out, f.Err
}

func (f *FakeReader) Erase(_ context.Context, counters []string) (erase.Erased, error) {
	return erase.Erased{Counters: len(counters)}, f.Err
}

func (f *FakeReader) EraseListed(context.Context, string, string) (erase.Erased, error) {
	return erase.Erased{}, f.Err
}

func (f *FakeReader) About(context.Context) (read.About, error) {
	return read.About{Layout: f.Layout, CountingSince: answer.SinceExample.UnixMilli()}, f.Err
}

// FakeNow is when the documented examples were asked.
var FakeNow = time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)

// BufferBodies reads bodies before a service's handlers do, as query does.
func BufferBodies(next http.Handler) http.Handler {
	bodies := web.BodyBudget()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			if p := api.BufferBody(w, r, bodies, api.MaxBody); p != nil {
				p.Write(w)
				return
			}
			defer r.Body.Close()
		}
		next.ServeHTTP(w, r)
	})
}

func Send(h http.Handler, method, target, body string, headers ...string) *http.Response {
	r := newRequest(method, target, body)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func newRequest(method, target, body string) *http.Request {
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	r := httptest.NewRequest(method, "http://tallyroll.test/", reader)
	// Requests arrive with any bytes in their query; NewRequest would panic at some.
	path, query, _ := strings.Cut(target, "?")
	r.URL.Path, r.URL.RawQuery, r.RequestURI = path, query, target
	return r
}

// RequireProblem decodes a problem with the given status.
func RequireProblem(t testing.TB, resp *http.Response, status int) web.Problem {
	t.Helper()
	data := ReadBody(t, resp)
	if resp.StatusCode != status || resp.Header.Get("Content-Type") != web.ProblemType {
		t.Fatalf("status %d %s, want %d %s: %s", resp.StatusCode, resp.Header.Get("Content-Type"), status, web.ProblemType, data)
	}
	var out web.Problem
	require.NoErrorf(t, json.Unmarshal(data, &out), "problem %s", data)
	if out.Status != status || out.Detail == "" || !listed(out) {
		t.Errorf("problem %+v, want status, detail, and type and title of a kind of %d", out, status)
	}
	return out
}

func ReadBody(t testing.TB, resp *http.Response) []byte {
	t.Helper()
	data, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return data
}

// listed reports whether a problem is of a kind that the page lists.
func listed(p web.Problem) bool {
	return slices.ContainsFunc(web.Kinds(), func(k *web.Kind) bool {
		return k.Type() == p.Type && k.Status == p.Status && cmp.Or(k.Title, http.StatusText(k.Status)) == p.Title
	})
}

// Log is a log that may be read while it is written.
type Log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// Count is how many lines have the message.
func (l *Log) Count(message string) int { return strings.Count(l.String(), `"message":"`+message+`"`) }

var questionLine = regexp.MustCompile(`^"?(GET|HEAD|POST|DELETE) /`)

// CheckTranscript checks that each question in a file has the answer that follows it there, up to an empty
// line or the next question. Other lines are comments, or are prepared. UPDATE_ANSWERS=1 writes the answers
// again.
func CheckTranscript(t *testing.T, file string, answer func(question string) string, prepare func(words []string)) {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	lines, all := slices.Collect(strings.Lines(string(data))), ""
	for i := 0; i < len(lines); {
		line, got, want := lines[i], "", ""
		i++
		switch {
		case questionLine.MatchString(line):
			for ; i < len(lines) && lines[i] != "\n" && !questionLine.MatchString(lines[i]); i++ {
				want += lines[i]
			}
			if got = answer(strings.TrimSpace(line)); got != want {
				t.Errorf("%s: %sgot\n%s\nwant\n%s", file, line, got, want)
			}
		case line != "\n" && line[0] != '#':
			prepare(strings.Fields(line))
		}
		all += line + got
	}
	if os.Getenv("UPDATE_ANSWERS") != "" {
		require.NoError(t, os.WriteFile(file, []byte(all), 0o600))
	}
}

// Request is a request from a data file, and what is to come of it.
type Request struct {
	Line                 int
	Method, Target, Body string
	Header               http.Header
	Options              map[string]string // what a test wants to know, by names in lower case
	Status               int
	Want                 string
}

func (r Request) String() string {
	return fmt.Sprintf("line %d: %s %.100s %.100q", r.Line, r.Method, r.Target, r.Body)
}

// placeholder is a byte such as «ff», or a text that is repeated, such as «k*513».
var placeholder = regexp.MustCompile(`«(?:([0-9a-f]{2})|([^»]+)\*(\d+))»`)

// ReadRequests reads a data file that has a request in each line, except for empty ones and those that begin
// with #:
//
//	METHOD TARGET BODY @Header: value @option: value => STATUS WANT
func ReadRequests(t testing.TB, file string) (out []Request) {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	n := 0
	for line := range strings.Lines(string(data)) {
		n++
		line = strings.TrimSuffix(line, "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		request, want, ok := strings.Cut(line, " => ")
		require.Truef(t, ok, "%s:%d: no =>", file, n)
		request = placeholder.ReplaceAllStringFunc(request, func(text string) string {
			m := placeholder.FindStringSubmatch(text)
			code, _ := strconv.ParseUint(m[1], 16, 8)
			times, _ := strconv.Atoi(m[3])
			return strings.Repeat(cmp.Or(m[2], string([]byte{byte(code)})), max(times, 1))
		})
		parts := strings.Split(request, " @")
		words := append(strings.SplitN(parts[0], " ", 3), "", "")
		r := Request{Line: n, Method: words[0], Target: words[1], Body: words[2], Header: make(http.Header), Options: make(map[string]string)}
		for _, part := range parts[1:] {
			name, value, _ := strings.Cut(part, ": ")
			if name == strings.ToLower(name) {
				r.Options[name] = value
				continue
			}
			r.Header.Add(name, value)
		}
		status, rest, _ := strings.Cut(want, " ")
		r.Want = rest
		r.Status, err = strconv.Atoi(status)
		require.NoErrorf(t, err, "%s:%d", file, n)
		out = append(out, r)
	}
	return out
}

// HTTP is the request as a service gets it.
func (r Request) HTTP() *http.Request {
	out := newRequest(r.Method, r.Target, r.Body)
	out.Header = r.Header.Clone()
	return out
}

// Send sends the request to a service.
func (r Request) Send(h http.Handler) *http.Response {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r.HTTP())
	return w.Result()
}
