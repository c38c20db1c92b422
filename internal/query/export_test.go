package query

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
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

	"tallyroll/internal/answer"
	"tallyroll/internal/web"
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

func TestExport(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	client := stack.ProgramClient(t, redis.URL())
	hour := now.Truncate(time.Hour).Add(-2 * time.Hour)
	asking.Seed(t, client, now,
		asking.Hits("b", hour, 1), asking.Hits("b", hour.Add(59*time.Minute), 2), asking.Hits("b", hour.Add(time.Hour), 3),
		asking.Hits(`a "quoted", name`, hour.Add(30*time.Minute), 4), asking.Hits("=1+1", hour, 5), asking.Hits("open", now, 6))
	s := onRedis(t, redis.URL(), now)
	server := httptest.NewServer(s.handler())
	defer server.Close()
	at := func(hours int) string { return hour.Add(time.Duration(hours) * time.Hour).Format(time.RFC3339) }
	rows := []string{
		"=1+1," + at(0) + "," + at(1) + ",5\n",
		`"a ""quoted"", name",` + at(0) + "," + at(1) + ",4\n",
		"b," + at(0) + "," + at(1) + ",3\n",
		"b," + at(1) + "," + at(2) + ",3\n",
	}
	const head = "key,from,to,hits\n"
	ask := url.Values{"from": {at(0)}, "to": {at(2)}, "step": {"1h"}}

	resp, text := exportOf(t, server, ask.Encode())
	if want := head + strings.Join(rows, ""); resp.StatusCode != http.StatusOK || text != want {
		t.Errorf("status %d\n%s\nwant\n%s", resp.StatusCode, text, want)
	}
	for name, want := range map[string]string{
		"Content-Type": "text/csv; charset=utf-8", "Cache-Control": "no-store", "Tallyroll-As-Of": now.Format(time.RFC3339Nano),
		"Tallyroll-From": at(0), "Tallyroll-To": at(2), "Tallyroll-Step": "1h",
	} {
		if got := resp.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if resp.Trailer.Get("Tallyroll-Complete") != "true" || resp.Trailer.Get("Tallyroll-Rows") != "4" {
		t.Errorf("trailers %v", resp.Trailer)
	}
	token := resp.Header.Get("Tallyroll-Resume")

	for _, c := range []struct {
		name string
		also url.Values
		want string
	}{
		{"the same again", url.Values{"resume": {token}}, head + strings.Join(rows, "")},
		{"behind a counter", url.Values{"resume": {token}, "after": {"=1+1"}}, head + strings.Join(rows[1:], "")},
		{"behind a counter, without a token", url.Values{"from": {at(0)}, "to": {at(2)}, "step": {"1h"}, "after": {`a "quoted", name`}}, head + rows[2] + rows[3]},
		{"with the same parameters", url.Values{"resume": {token}, "from": {at(0)}, "to": {at(2)}, "step": {"1h"}, "after": {"b"}}, head},
		{"with a prefix", url.Values{"from": {at(0)}, "to": {at(2)}, "step": {"1h"}, "prefix": {"a"}}, head + rows[1]},
		{"widened", url.Values{"from": {hour.Add(time.Second).Format(time.RFC3339)}, "to": {hour.Add(time.Hour + time.Second).Format(time.RFC3339)}, "step": {"1h"}}, head + strings.Join(rows, "")},
	} {
		if resp, text := exportOf(t, server, c.also.Encode()); resp.StatusCode != http.StatusOK || text != c.want {
			t.Errorf("%s: status %d\n%s\nwant\n%s", c.name, resp.StatusCode, text, c.want)
		}
	}

	ask.Set("to", now.Format(time.RFC3339))
	resp, text = exportOf(t, server, ask.Encode()+"&format=ndjson")
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	var end answer.ExportEnd
	require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &end))
	if len(lines) != 5 || end.Rows != 4 || end.Complete || !end.AsOf.Equal(now) || !end.To.Equal(hour.Add(2*time.Hour)) || resp.Trailer.Get("Tallyroll-Complete") != "false" {
		t.Errorf("an end that is not closed: %s, trailers %v", text, resp.Trailer)
	}
	if want := `{"key":"a \"quoted\", name","from":"` + at(0) + `","to":"` + at(1) + `","hits":4}`; lines[1] != want {
		t.Errorf("got %s, want %s", lines[1], want)
	}
	if resp, _ := exportOf(t, server, "resume="+resp.Header.Get("Tallyroll-Resume")+"&"+ask.Encode()); resp.StatusCode != http.StatusOK || resp.Trailer.Get("Tallyroll-Complete") != "false" {
		t.Errorf("the rest of a cut one: status %d, trailers %v", resp.StatusCode, resp.Trailer)
	}

	resp, text = exportOf(t, server, ask.Encode(), "Accept-Encoding", "gzip")
	if resp.Header.Get("Content-Encoding") == "gzip" {
		plain, err := gzip.NewReader(strings.NewReader(text))
		require.NoError(t, err)
		all, err := io.ReadAll(plain)
		text = string(all)
		require.NoError(t, err)
	}
	if text != head+strings.Join(rows, "") || resp.Trailer.Get("Tallyroll-Rows") != "4" {
		t.Errorf("compressed (%s): %q, trailers %v", resp.Header.Get("Content-Encoding"), text, resp.Trailer)
	}

	other := url.Values{"resume": {token}}
	for param, value := range map[string]string{"prefix": "b", "step": "2h", "from": at(1), "to": at(1)} {
		other := url.Values{"resume": {token}, param: {value}}
		if p := refusedExport(t, server, other.Encode(), http.StatusBadRequest); !strings.Contains(p.Detail, "belongs to an export with") {
			t.Errorf("%s of another export: %s", param, p.Detail)
		}
	}
	for _, bad := range []string{"x", token[:len(token)-2], strings.ToUpper(token), token + "A", "AAAAAAAA"} {
		other.Set("resume", bad)
		if p := refusedExport(t, server, other.Encode(), http.StatusBadRequest); !strings.Contains(p.Detail, "is not a token of an export") {
			t.Errorf("%s: %s", bad, p.Detail)
		}
	}
	for query, want := range map[string]string{
		"format=xml":                          "allowed are csv or ndjson",
		"step=7m":                             "step: 7m is not a step of an export: allowed are the cells (1m, 1h)",
		"step=x":                              "not a duration",
		"from=" + at(1) + "&to=" + at(0):      "from",
		"to=" + at(24):                        "to:",
		"from=" + at(-30) + "&step=1m":        "from: the cells for a step of 1m do not reach back",
		"prefix=" + strings.Repeat("x", 1000): "prefix",
		"after=":                              "after",
		"key=a":                               "unknown parameter",
	} {
		if p := refusedExport(t, server, query, http.StatusBadRequest); !strings.Contains(p.Detail, want) {
			t.Errorf("%s: %s, want %s", query, p.Detail, want)
		}
	}

	// Over HTTP/1.0 the end of the connection is the end of the answer.
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	fmt.Fprintf(conn, "GET /v1/export HTTP/1.0\r\nHost: localhost\r\n\r\n")
	old, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	defer old.Body.Close()
	if p := asking.Refused(t, old, http.StatusBadRequest); !strings.Contains(p.Detail, "HTTP/1.1") {
		t.Error(p.Detail)
	}
}

func refusedExport(t *testing.T, server *httptest.Server, query string, status int) web.Problem {
	t.Helper()
	resp, text := exportOf(t, server, query)
	resp.Body = io.NopCloser(strings.NewReader(text))
	return asking.Refused(t, resp, status)
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
func TestExportIsBrokenOff(t *testing.T) {
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
		if err == nil || resp.ProtoMajor == 1 && !errors.Is(err, io.ErrUnexpectedEOF) || resp.ProtoMajor != 1+i/2 || resp.StatusCode != http.StatusOK || len(resp.Trailer.Get("Tallyroll-Complete")) > 0 {
			t.Errorf("%v: status %d, %d bytes, %v, trailers %v", headers, resp.StatusCode, len(text), err, resp.Trailer)
		}
		if headers == nil && !strings.Contains(string(text), `{"resume":"`) {
			t.Error("no line has a token")
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
			standing := func() bool {
				before := endless.pages.Load()
				time.Sleep(300 * time.Millisecond)
				return before > 0 && endless.pages.Load() == before
			}
			stack.Eventually(t, "the reads to stand still", func() (bool, string) {
				return underWay(s) == 2 && standing(), fmt.Sprint(endless.pages.Load())
			})
			resp, text := exportOf(t, server, "", "Authorization", "Bearer third-token-of-16")
			if resp.StatusCode != http.StatusTooManyRequests || !strings.Contains(text, "2 exports are under way: at most 2") || resp.Header.Get("Retry-After") == "" {
				t.Errorf("no place is left: status %d, %s, %v", resp.StatusCode, text, resp.Header)
			}
			for _, conn := range clients {
				conn.Close()
			}
			stack.Eventually(t, "the exports to end", func() (bool, string) { return underWay(s) == 0, fmt.Sprint(underWay(s)) })
			if !standing() {
				t.Error("somebody still reads")
			}
		})
	}
}
