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

	"tallyroll/internal/window"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// exportOf asks a server and reads all of the answer.
func exportOf(t *testing.T, server *httptest.Server, query string, headers ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/v1/export?"+query, nil)
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := server.Client().Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	return resp, string(asking.ReadAll(t, resp))
}

// The headers of an export say what it is, its trailers that it is whole, compressed or not. Its rows are tested in
// internal/answer.
func TestExportHasHeadersAndTrailers(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	hour := now.Truncate(time.Hour).Add(-2 * time.Hour)
	asking.Seed(t, redis.Client(), now, asking.Hits("b", hour, 1), asking.Hits("b", hour.Add(time.Hour), 3))
	server := httptest.NewServer(onRedis(t, redis.URL(), now).handler())
	defer server.Close()
	at := func(hours int) string { return hour.Add(time.Duration(hours) * time.Hour).Format(time.RFC3339) }
	query := url.Values{"from": {at(0)}, "to": {at(2)}, "step": {"1h"}}.Encode()
	want := "key,from,to,hits\nb," + at(0) + "," + at(1) + ",1\nb," + at(1) + "," + at(2) + ",3\n"
	for _, encoding := range []string{"identity", "gzip"} {
		resp, text := exportOf(t, server, query, "Accept-Encoding", encoding)
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
		again, text := exportOf(t, server, "resume="+resp.Header.Get("Tallyroll-Resume"))
		require.Equal(t, http.StatusOK, again.StatusCode)
		require.Equal(t, want, text)
	}
	cut, _ := exportOf(t, server, "step=1h&format=ndjson&from="+at(0)+"&to="+now.Format(time.RFC3339))
	require.Equal(t, http.Header{"Tallyroll-Complete": {"false"}, "Tallyroll-Rows": {"2"}}, cut.Trailer)

	// Over HTTP/1.0 the end of the connection is the end of the answer.
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	fmt.Fprintf(conn, "GET /v1/export HTTP/1.0\r\nHost: localhost\r\n\r\n")
	old, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	defer old.Body.Close()
	require.Contains(t, asking.Refused(t, old, http.StatusBadRequest).Detail, "HTTP/1.1")
}

// endlessReader has as many pages as somebody reads.
type endlessReader struct {
	*asking.FakeReader
	failAt int64 // the page that fails, if it is not 0
	pages  atomic.Int64
}

func (f *endlessReader) ExportPage(ctx context.Context, e window.Export, _ window.ExportPlace) (window.ExportPage, error) {
	n := f.pages.Add(1)
	if n == f.failAt {
		return window.ExportPage{}, errors.New("connection reset by peer")
	}
	out := window.ExportPage{AsOf: f.Now.UnixMilli(), Complete: true, More: true, Next: window.ExportPlace{Counter: fmt.Sprintf("counter %d", n)}}
	for i := range 10_000 {
		out.Rows = append(out.Rows, window.ExportRow{Counter: out.Next.Counter, From: e.Range.From + int64(i)*3_600_000, Hits: 1})
	}
	return out, ctx.Err()
}

// If Redis fails on the way, the answer does not end as if it were whole.
func TestExportIsBrokenOffIfRedisFails(t *testing.T) {
	t.Parallel()
	for i, headers := range [][]string{nil, {"Accept-Encoding", "gzip"}, {"Accept-Encoding", "identity"}} {
		s, fake := onFake(t)
		readFrom(s, &endlessReader{FakeReader: fake, failAt: 4})
		server := httptest.NewUnstartedServer(s.handler())
		if i == 2 {
			server.EnableHTTP2 = true
			server.StartTLS()
		} else {
			server.Start()
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/v1/export?format=ndjson", nil)
		require.NoError(t, err)
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		resp, err := server.Client().Do(r)
		require.NoError(t, err)
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err == nil || resp.ProtoMajor == 1 && !errors.Is(err, io.ErrUnexpectedEOF) || resp.ProtoMajor != 1+i/2 ||
			resp.StatusCode != http.StatusOK || resp.Trailer.Get("Tallyroll-Complete") != "" {
			t.Errorf("%v: status %d, %d bytes, %v, trailers %v", headers, resp.StatusCode, len(text), err, resp.Trailer)
		}
		server.Close() // waits for the handlers
		if underWay(s) != 0 {
			t.Error("the export still has its place")
		}
	}
}

// underWay is how many exports have a place.
func underWay(s *service) int {
	s.exports.mu.Lock()
	defer s.exports.mu.Unlock()
	return s.exports.all
}

// A client that does not read holds up the reads of its export, one that goes ends them, and further ones wait for room. One
// caller cannot hold all places: a token, or without tokens an address.
func TestExportWaitsForItsClient(t *testing.T) {
	t.Parallel()
	for name, callers := range map[string][2]string{
		"tokens":    {"Authorization: Bearer first-token-of-16", "Authorization: Bearer second-token-of-16"},
		"addresses": {"X-Forwarded-For: 192.0.2.1", "X-Forwarded-For: 192.0.2.2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, fake := onFake(t)
			endless := &endlessReader{FakeReader: fake}
			readFrom(s, endless)
			if name == "tokens" {
				useTokens(t, s, "first-token-of-16,second-token-of-16,third-token-of-16")
			} else if err := s.gate.Proxies.UnmarshalText([]byte("127.0.0.1")); err != nil {
				t.Fatal(err)
			}
			server := httptest.NewServer(s.handler())
			defer server.Close()
			var clients []net.Conn
			for i, caller := range callers {
				conn, err := net.Dial("tcp", server.Listener.Addr().String())
				require.NoError(t, err)
				defer conn.Close()
				fmt.Fprintf(conn, "GET /v1/export HTTP/1.1\r\nHost: localhost\r\n%s\r\n\r\n", caller)
				clients = append(clients, conn)
				stack.Eventually(t, "the export to begin", func() (bool, string) { return underWay(s) == i+1, fmt.Sprint(underWay(s)) })
				own, value, _ := strings.Cut(caller, ": ")
				resp, text := exportOf(t, server, "", own, value)
				if resp.StatusCode != http.StatusTooManyRequests || !strings.Contains(text, "at most 1 of one caller") {
					t.Errorf("a second one of the same caller: status %d, %s", resp.StatusCode, text)
				}
			}
			// A client that does not read holds up the reads: they stand still while both exports are under way.
			before, still := int64(0), 0
			stack.Eventually(t, "the reads to stand still", func() (bool, string) {
				still++
				if pages := endless.pages.Load(); pages != before {
					before, still = pages, 0
				}
				return underWay(s) == 2 && before > 0 && still > 15, fmt.Sprint(before)
			})
			resp, text := exportOf(t, server, "", "Authorization", "Bearer third-token-of-16")
			if resp.StatusCode != http.StatusTooManyRequests || !strings.Contains(text, "2 exports are under way: at most 2") || resp.Header.Get("Retry-After") == "" {
				t.Errorf("no place is left: status %d, %s, %v", resp.StatusCode, text, resp.Header)
			}
			for _, conn := range clients {
				conn.Close()
			}
			stack.Eventually(t, "the exports to end", func() (bool, string) { return underWay(s) == 0, fmt.Sprint(underWay(s)) })
		})
	}
}
