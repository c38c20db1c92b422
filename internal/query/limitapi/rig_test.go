package limitapi

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/danielgtaylor/huma/v2"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/limit"
	"tallyroll/internal/query/answer"
	"tallyroll/internal/query/answer/scope"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
	"tallyroll/tests/apitest"
	"tallyroll/tests/stack"
)

// recorder is a limiter that notes what it is asked, as lines such as "take login/1m0s/5/log alice 1".
type recorder struct {
	Limiter
	err   error // answers every question, if it is not nil
	asked []string
}

func (r *recorder) note(verb string, takes ...limit.Take) error {
	for _, k := range takes {
		l := k.Limit
		length := l.Window.String()
		if l.Period != nil {
			length = fmt.Sprintf("%s of %s from %q", l.Period, l.Period.Zone(), l.Period.Starts())
		}
		line := fmt.Sprintf("%s %s/%s/%d/%s %s", verb, l.Name, length, l.Max, l.Policy, k.Caller)
		if k.Key != k.Caller {
			line += " under " + k.Key
		}
		if verb == "take" || verb == "look" || verb == "settle" {
			line += fmt.Sprint(" ", k.N)
		}
		if k.Lease != "" {
			line += " lease " + k.Lease
		}
		r.asked = append(r.asked, line)
	}
	return r.err
}

func (r *recorder) Take(ctx context.Context, takes []limit.Take) (out limit.Answer, err error) {
	if err = r.note("take", takes...); err == nil {
		out, err = r.Limiter.Take(ctx, takes)
	}
	return out, err
}

func (r *recorder) Look(ctx context.Context, takes []limit.Take) (out limit.Answer, err error) {
	if err = r.note("look", takes...); err == nil {
		out, err = r.Limiter.Look(ctx, takes)
	}
	return out, err
}

func (r *recorder) Reset(ctx context.Context, take limit.Take) error {
	if err := r.note("reset", take); err != nil {
		return err
	}
	return r.Limiter.Reset(ctx, take)
}

func (r *recorder) Renew(ctx context.Context, take limit.Take) (out limit.Lease, err error) {
	if err = r.note("renew", take); err == nil {
		out, err = r.Limiter.Renew(ctx, take)
	}
	return out, err
}

func (r *recorder) Release(ctx context.Context, take limit.Take) (held bool, err error) {
	if err = r.note("release", take); err == nil {
		held, err = r.Limiter.Release(ctx, take)
	}
	return held, err
}

func (r *recorder) Settle(ctx context.Context, takes []limit.Take) (out limit.Answer, err error) {
	if err = r.note("settle", takes...); err == nil {
		out, err = r.Limiter.Settle(ctx, takes)
	}
	return out, err
}

type healthy struct{}

func (healthy) Why() string   { return "" }
func (healthy) RequestCheck() {}

// site is the limits API behind HTTP, with testdata/limits.yml.
type site struct {
	api     *Service
	limiter *recorder
	metrics *web.Metrics
	handler http.Handler
}

// newSite starts a limits API whose limiter has a stand-in for Redis, or none that answers.
func newSite(t *testing.T, mode TakeMode, withRedis bool) *site {
	t.Helper()
	addr := "127.0.0.1:1"
	if withRedis {
		addr = miniredis.RunT(t).Addr()
	}
	client := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, DialerRetries: 1})
	limiter := limit.New(client, "test", stack.Hung)
	t.Cleanup(func() { limiter.Wait(); _ = client.Close() })
	s := &site{limiter: &recorder{Limiter: limiter}, metrics: web.NewMetrics("query", 14)}
	source := answer.NewSource(healthy{}, stack.Hung, zerolog.Nop(), s.metrics.Registry)
	settings := Settings{
		Take: mode, File: filepath.Join("testdata", "limits.yml"), Files: noFiles(),
		Audit: func(*http.Request) *zerolog.Event { return nil },
	}
	require.NoError(t, settings.Proxies.UnmarshalText([]byte("10.0.0.0/8")))
	counters := scope.Authorize(&apitest.FakeReader{Layout: apitest.Layout(t), Now: apitest.FakeNow})
	var err error
	s.api, err = New(settings, s.limiter, counters, source, zerolog.Nop(), s.metrics)
	require.NoError(t, err)
	require.Len(t, s.api.process, 8)
	s.api.process = "5f0c2a9e"
	mux := http.NewServeMux()
	s.api.Register(api.New(mux, api.Title{Every: func(*api.API, *huma.Operation) {}}), mux)
	buffered := apitest.BufferBodies(mux)
	s.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if IsAuthz(r.URL.Path) {
			mux.ServeHTTP(w, WithoutOriginal(r))
			return
		}
		buffered.ServeHTTP(w, WithoutOriginal(r))
	})
	return s
}

// ask sends a request as a proxy at 10.0.0.1 does; headers are written "Name: value".
func (s *site) ask(method, target, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://shop.example:8443"+target, strings.NewReader(body))
	r.RemoteAddr = "10.0.0.1:999"
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		r.Header.Add(name, value)
	}
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	return w
}

// decisions are the lines of /metrics about decisions.
func (s *site) decisions() []string { return s.metricLines("tallyroll_limit_decisions_total{") }

func (s *site) metricLines(prefix string) (lines []string) {
	w := httptest.NewRecorder()
	promhttp.HandlerFor(s.metrics.Registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, prefix) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	slices.Sort(lines)
	return lines
}

// limitsIn are those of a file with this text; rewrite gives it another.
func limitsIn(t *testing.T, text string) (l *limits, rewrite func(text string)) {
	t.Helper()
	file, files := filepath.Join(t.TempDir(), "limits.yml"), noFiles()
	write := func(text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	write(text)
	l, err := newLimits(TakeNamed, file, files)
	require.NoError(t, err)
	return l, func(text string) { write(text); files.Reload() }
}
