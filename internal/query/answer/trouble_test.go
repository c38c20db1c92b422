package answer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/query/answer"
	"tallyroll/internal/web"
	"tallyroll/internal/window"
	"tallyroll/internal/window/erase"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/apitest"
	"tallyroll/tests/stack"
)

// A key that something else has written, of another type or with another value, is named to each caller that
// runs into it, with a status that does not tell to wait, and to no other caller.
func TestSpoiltKeyIsNamed(t *testing.T) {
	t.Parallel()
	server := stack.Redis(t)
	shard := apitest.Layout(t).ShardOf(window.HashCounter([]byte("a")))
	of := func(pattern string) string { return fmt.Sprintf("test:{%d}:%s", shard, pattern) }
	a := []string{"/v1/total?key=a&window=10m", "/v1/total?key=b&key=a&window=10m&window=1h", "/v1/series?key=a"}
	top, counters, uniques := []string{"/v1/top?window=10m"}, []string{"/v1/counters"}, []string{"/v1/uniques?key=b&key=a&window=1h"}
	all := slices.Concat(a, top, counters)
	for pattern, c := range map[string]struct {
		text, hash []string // what is refused if the key is a string, or a hash
		fine       []string
	}{
		of("h:1m:*:a"):    {text: a, hash: a, fine: []string{"/v1/total?key=b&window=10m", "/v1/series?key=b"}},
		of("cursor:HITS"): {text: all, hash: all},
		of("top:1h:*"):    {text: top, hash: top, fine: a},
		of("names:*"):     {text: counters, fine: slices.Concat(a, top)},
		of("u:5m:*:a"):    {text: uniques, fine: all},
		"test:streams":    {text: all, hash: all},
		"test:layout":     {text: all, hash: all},
	} {
		for spoil, asked := range map[string][]string{"text": c.text, "hash": c.hash} {
			if asked == nil {
				continue
			}
			h := newRig(t, server.URL())
			require.NoError(t, h.client.FlushAll(t.Context()).Err())
			h.count(t, "", []apitest.Sample{apitest.NewSample("a", today.Add(-time.Minute), 3), apitest.NewSample("b", today.Add(-time.Minute), 4)})
			apitest.SeedUniques(t, h.client, "a", today.Add(-time.Minute), "ann")
			keys := stack.Scan(t, h.client, pattern)
			require.NotEmpty(t, keys, pattern)
			for _, key := range keys {
				require.NoError(t, h.client.Del(t.Context(), key).Err())
				if spoil == "text" {
					require.NoError(t, h.client.Set(t.Context(), key, "mine", 0).Err())
				} else {
					require.NoError(t, h.client.HSet(t.Context(), key, "created", "mine").Err())
				}
			}
			for _, target := range asked {
				resp := apitest.Send(h, http.MethodGet, target, "")
				p := apitest.RequireProblem(t, resp, http.StatusInternalServerError)
				named := slices.ContainsFunc(keys, func(key string) bool { return strings.Contains(p.Detail, key) })
				if !named || resp.Header.Get("Retry-After") != "" || strings.Contains(p.Detail, "\n") {
					t.Errorf("%s as a %s: %s: %q, %v", pattern, spoil, target, p.Detail, resp.Header)
				}
			}
			for _, target := range c.fine {
				if resp := apitest.Send(h, http.MethodGet, target, ""); resp.StatusCode != http.StatusOK {
					t.Errorf("%s as a %s: %s: %s", pattern, spoil, target, apitest.ReadBody(t, resp))
				}
			}
		}
	}
}

// What the reader says becomes a problem that tells the caller what to do, without Redis's own words.
func TestReadErrorsBecomeProblems(t *testing.T) {
	t.Parallel()
	f := &apitest.FakeReader{Layout: apitest.Layout(t), Now: apitest.FakeNow}
	d := newService(f)
	h := handlerOf(d)
	targets := []string{
		"/v1/total?key=a&window=1h", "/v1/total?prefix=a&window=1h", "/v1/uniques?key=a&window=1h", "/v1/series?key=a", "/v1/series?prefix=a",
		"/v1/top?window=1h", "/v1/top?window=1h&prefix=a", "/v1/counters", "/v1/about", "/v1/export",
		"/probe?key=a&window=1h", "/probe?top=1&window=1h", "/probe?prefix=a&window=1h",
	}
	for _, c := range []struct {
		err        error
		status     int
		detail     string
		retryAfter string
	}{
		{errors.New("dial tcp 10.0.0.7: connection refused"), 503, "Redis cannot answer now: ask again in a second", "1"},
		{context.DeadlineExceeded, 503, "Redis did not answer within 1m0s: ask again in a second", "1"},
		{schema.ErrNoLayout, 503, schema.ErrNoLayout.Error(), "1"},
		{&window.ForeignError{Key: "test:{0}:h:1m:1:a", Err: errors.New("WRONGTYPE")}, 500, "test:{0}:h:1m:1:a", ""},
		{&window.TooMuchError{What: "points", Count: 7, Max: 6}, 413, "7 points in one answer: at most 6 are allowed (QUERY_MAX_POINTS)", ""},
		{web.NewProblem(http.StatusForbidden, "outside of the token"), 403, "outside of the token", ""},
	} {
		f.Err = c.err
		d.Redis.Timeout = time.Minute
		for _, target := range targets {
			resp := apitest.Send(h, http.MethodGet, target, "")
			if p := apitest.RequireProblem(t, resp, c.status); !strings.Contains(p.Detail, c.detail) || resp.Header.Get("Retry-After") != c.retryAfter {
				t.Errorf("%v: %s: %s, %v", c.err, target, p.Detail, resp.Header)
			}
		}
	}
}

// An erasure that Redis ends early reports how many counters are erased, and what to do.
func TestErasureThatEndsEarlyReportsWhy(t *testing.T) {
	t.Parallel()
	f := &apitest.FakeReader{Layout: apitest.Layout(t), Now: apitest.FakeNow}
	for want, err := range map[string]error{
		"503 1 counters are erased, and then ":                                 erase.ErrBusy,
		"409 1 counters are erased, and no more: ":                             erase.ErrRetiering,
		"503 the Redis user may not erase: it needs the rights of query-erase": noPermission{},
	} {
		f.Err = err
		out, err := newService(f).Erase(t.Context(), &answer.EraseParams{Key: "a"})
		var p *web.Problem
		require.ErrorAs(t, err, &p)
		require.Contains(t, fmt.Sprint(p.Status, " ", p.Detail), want)
		require.Equal(t, 1, out.Erased)
	}
}

// noPermission is an error reply.
type noPermission struct{}

func (noPermission) Error() string { return "NOPERM this user has no permissions" }
func (noPermission) RedisError()   {}

// pagesReader has pages of 10,000 rows without end, or fails.
type pagesReader struct {
	*apitest.FakeReader
	failAt, pages int
}

func (f *pagesReader) ExportPage(_ context.Context, e read.Export, at read.ExportPlace) (read.ExportPage, error) {
	f.pages++
	if f.pages == f.failAt {
		return read.ExportPage{}, f.Err
	}
	out := read.ExportPage{AsOf: f.Now.UnixMilli(), Complete: true, More: true, Next: read.ExportPlace{Counter: at.Counter + "x"}}
	for i := range 10_000 {
		out.Rows = append(out.Rows, read.ExportRow{Counter: out.Next.Counter, From: e.Range.From + int64(i)*3_600_000, Hits: 1})
	}
	return out, nil
}

// An export that fails on the way ends with the problem, and goes on behind the last whole counter.
func TestExportThatFailsGoesOnBehindACounter(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err    error
		status int
	}{{errors.New("connection reset by peer"), 503}, {read.ErrReopened, 503}} {
		f := &pagesReader{FakeReader: &apitest.FakeReader{Layout: apitest.Layout(t), Now: apitest.FakeNow}, failAt: 4}
		d := newService(f)
		e, err := d.Export(t.Context(), &answer.ExportParams{Format: "ndjson"})
		require.NoError(t, err)
		f.Err = c.err
		var p *web.Problem
		require.ErrorAs(t, e.Write(t.Context(), func([]byte) error { return nil }), &p)
		require.Equal(t, c.status, p.Status)
		require.Equal(t, int64(30_000), e.Rows())
		f.Err, f.failAt = nil, 0
		rest, err := d.Export(t.Context(), &answer.ExportParams{Format: "ndjson", After: "xxx"})
		require.NoError(t, err)
		gone := errors.New("the client is gone")
		err = rest.Write(t.Context(), func(part []byte) error {
			require.True(t, bytes.HasPrefix(part, []byte(`{"key":"xxxx",`)), "%.100s", part)
			return gone
		})
		require.ErrorIs(t, err, gone)
	}
}
