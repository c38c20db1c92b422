package query

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/window/read"
	"tallyroll/tests/apitest"
	"tallyroll/tests/stack"
)

// The headers of an export describe it, its trailers tell that it is whole, compressed or not. Its rows are
// tested in internal/query/answer.
func TestExportHasHeadersAndTrailers(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), apitest.Now()
	hour := now.Truncate(time.Hour).Add(-2 * time.Hour)
	apitest.Seed(t, redis.Client(), now, apitest.NewSample("b", hour, 1), apitest.NewSample("b", hour.Add(time.Hour), 3))
	server := startServer(t, serveRedis(t, redis.URL(), now).handler())
	at := func(hours int) string { return hour.Add(time.Duration(hours) * time.Hour).Format(time.RFC3339) }
	export := func(query string, headers ...string) (*http.Response, string) {
		resp := send(t, server, http.MethodGet, "/v1/export?"+query, "", headers...)
		return resp, string(apitest.ReadBody(t, resp)) // trailers follow the body
	}
	query := url.Values{"from": {at(0)}, "to": {at(2)}, "step": {"1h"}}.Encode()
	want := "key,from,to,hits\nb," + at(0) + "," + at(1) + ",1\nb," + at(1) + "," + at(2) + ",3\n"
	for _, encoding := range []string{"identity", "gzip"} {
		resp, text := export(query, "Accept-Encoding", encoding)
		if resp.Header.Get("Content-Encoding") == "gzip" {
			plain, err := gzip.NewReader(strings.NewReader(text))
			require.NoError(t, err)
			data, err := io.ReadAll(plain)
			require.NoError(t, err)
			text = string(data)
		}
		require.Equal(t, want, text, encoding)
		for name, want := range map[string]string{
			"Content-Type": "text/csv; charset=utf-8", "Cache-Control": "no-store", "Tallyroll-As-Of": now.Format(time.RFC3339Nano),
			"Tallyroll-From": at(0), "Tallyroll-To": at(2), "Tallyroll-Step": "1h",
		} {
			require.Equal(t, want, resp.Header.Get(name), name)
		}
		require.Equal(t, http.Header{"Tallyroll-Complete": {"true"}, "Tallyroll-Rows": {"2"}}, resp.Trailer, encoding)
	}
	cut, _ := export("step=1h&format=ndjson&from=" + at(0) + "&to=" + now.Format(time.RFC3339))
	require.Equal(t, http.Header{"Tallyroll-Complete": {"false"}, "Tallyroll-Rows": {"2"}}, cut.Trailer)

	// Over HTTP/1.0 the end of the connection is the end of the answer.
	old, err := http.ReadResponse(bufio.NewReader(dialExport(t, server, "HTTP/1.0", "Accept: text/csv")), nil)
	require.NoError(t, err)
	defer old.Body.Close()
	require.Contains(t, apitest.RequireProblem(t, old, http.StatusBadRequest).Detail, "HTTP/1.1")
}

// dialExport begins an export, and reads nothing.
func dialExport(t *testing.T, server *httptest.Server, version, header string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "GET /v1/export %s\r\nHost: localhost\r\n%s\r\n\r\n", version, header)
	return conn
}

// endlessReader has as many pages as are read.
type endlessReader struct {
	*apitest.FakeReader
	failAt int64 // the page that fails, if it is not 0
	pages  atomic.Int64
}

func (f *endlessReader) ExportPage(_ context.Context, e read.Export, _ read.ExportPlace) (read.ExportPage, error) {
	n := f.pages.Add(1)
	if n == f.failAt {
		return read.ExportPage{}, errors.New("connection reset by peer")
	}
	out := read.ExportPage{AsOf: f.Now.UnixMilli(), Complete: true, More: true, Next: read.ExportPlace{Counter: fmt.Sprintf("counter %d", n)}}
	for i := range 10_000 {
		out.Rows = append(out.Rows, read.ExportRow{Counter: out.Next.Counter, From: e.Range.From + int64(i)*3_600_000, Hits: 1})
	}
	return out, nil
}

// countExports is how many exports are under way.
func (s *service) countExports() int {
	s.exports.slots.mu.Lock()
	defer s.exports.slots.mu.Unlock()
	return s.exports.slots.all
}

// awaitExports waits until as many are under way.
func (s *service) awaitExports(t *testing.T, want int) {
	t.Helper()
	stack.Eventually(t, fmt.Sprint(want, " exports"),
		func() (bool, string) { return s.countExports() == want, fmt.Sprint(s.countExports()) })
}

// If Redis fails on the way, the answer does not end as if it were whole.
func TestExportIsAbortedIfRedisFails(t *testing.T) {
	t.Parallel()
	for i, encoding := range []string{"", "gzip", "identity"} {
		s := serveFake(t)
		setReader(s.service, &endlessReader{FakeReader: s.reader, failAt: 4})
		server := httptest.NewUnstartedServer(s.handler())
		if i == 2 {
			server.EnableHTTP2 = true
			server.StartTLS()
		} else {
			server.Start()
		}
		resp := send(t, server, http.MethodGet, "/v1/export?format=ndjson", "", "Accept-Encoding", encoding)
		text, err := io.ReadAll(resp.Body)
		if err == nil || resp.ProtoMajor == 1 && !errors.Is(err, io.ErrUnexpectedEOF) || resp.ProtoMajor != 1+i/2 ||
			resp.StatusCode != http.StatusOK || resp.Trailer.Get("Tallyroll-Complete") != "" {
			t.Errorf("%q: status %d, %d bytes, %v, trailers %v", encoding, resp.StatusCode, len(text), err,
				resp.Trailer)
		}
		resp.Body.Close()
		server.Close() // waits for the handlers
		require.Zero(t, s.countExports())
	}
}

// A client that does not read holds up the reads of its export, one that goes ends them, and further ones
// wait for room. One caller cannot hold all places: a token, or without tokens an address.
func TestExportWaitsForItsClient(t *testing.T) {
	t.Parallel()
	for name, callers := range map[string][]string{
		"Authorization":   {"Bearer first-token-of-16", "Bearer second-token-of-16", "Bearer third-token-of-16"},
		"X-Forwarded-For": {"192.0.2.1", "192.0.2.2", "192.0.2.3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serveFake(t)
			endless := &endlessReader{FakeReader: s.reader}
			setReader(s.service, endless)
			if name == "Authorization" {
				setTokens(t, s.service, "first-token-of-16,second-token-of-16,third-token-of-16")
			}
			require.NoError(t, s.limits.Proxies.UnmarshalText([]byte("127.0.0.1")))
			server := startServer(t, s.handler())
			refused := func(caller string) string {
				resp := send(t, server, http.MethodGet, "/v1/export", "", name, caller)
				require.NotEmpty(t, resp.Header.Get("Retry-After"))
				return apitest.RequireProblem(t, resp, http.StatusTooManyRequests).Detail
			}
			var clients []net.Conn
			for i, caller := range callers[:2] {
				clients = append(clients, dialExport(t, server, "HTTP/1.1", name+": "+caller))
				s.awaitExports(t, i+1)
				require.Contains(t, refused(caller), "at most 1 of one caller")
			}
			// They stand still while both exports are under way.
			before, still := int64(0), 0
			stack.Eventually(t, "the reads to stand still", func() (bool, string) {
				still++
				if pages := endless.pages.Load(); pages != before {
					before, still = pages, 0
				}
				return s.countExports() == 2 && before > 0 && still > 15,
					fmt.Sprintf("%d pages, %d exports", before, s.countExports())
			})
			require.Contains(t, refused(callers[2]), "2 exports are under way: at most 2")
			for _, conn := range clients {
				conn.Close()
			}
			s.awaitExports(t, 0)
		})
	}
}
