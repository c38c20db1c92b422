package query

import (
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/hit"
	"tallyroll/internal/limit"
	"tallyroll/internal/query/limitapi"
	"tallyroll/internal/web"
	"tallyroll/tests/apitest"
	"tallyroll/tests/stack"
)

const goodTarget = "/v1/total?key=a&window=1h"

// Pages of named origins may ask, and read what is answered: also that their token is wrong. internal/web has
// all cases.
func TestPagesOfNamedOriginsMayAsk(t *testing.T) {
	t.Parallel()
	s := serveFake(t)
	require.NoError(t, s.middleware.origins.UnmarshalText([]byte("https://a.example")))
	setTokens(t, s.service, "secret")
	h := s.handler()
	for origin, allowed := range map[string]string{"https://a.example": "https://a.example", "https://b.example": ""} {
		for token, status := range map[string]int{"secret": http.StatusOK, "wrong": http.StatusUnauthorized} {
			resp := apitest.Send(h, http.MethodGet, goodTarget, "", "Origin", origin, "Authorization", "Bearer "+token)
			require.Equal(t, status, resp.StatusCode)
			require.Equal(t, allowed, resp.Header.Get("Access-Control-Allow-Origin"), origin)
			require.Contains(t, resp.Header.Values("Vary"), "Origin")
		}
		preflight := apitest.Send(h, http.MethodOptions, goodTarget, "", "Origin", origin, "Access-Control-Request-Method", "POST")
		require.Equal(t, allowed != "", preflight.StatusCode == http.StatusNoContent, origin)
		for name, want := range map[string]string{
			"Expose-Headers": "ETag, RateLimit, RateLimit-Policy, Retry-After",
			"Allow-Methods":  "GET, HEAD, POST, DELETE",
			"Allow-Headers":  "Authorization, Content-Type, Idempotency-Key, If-None-Match, Last-Event-ID",
		} {
			require.Equal(t, allowed != "", preflight.Header.Get("Access-Control-"+name) == want, name)
		}
	}
}

// Large answers are compressed where the client can read that, streams never, and a tag holds whether an
// answer was compressed or not.
func TestLargeAnswersAreCompressed(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), apitest.Now()
	apitest.Seed(t, redis.Client(), now, apitest.NewSample("a", now, 1))
	s := serveRedis(t, redis.URL(), now)
	runHealth(t, s)
	server := startServer(t, s.handler())
	for target, want := range map[string]string{
		"/v1/series?key=a": "gzip", "/openapi.json": "gzip", "/v1/total?key=a&window=10m": "", "/v1/live?key=a&window=10m": "",
	} {
		resp := send(t, server, http.MethodGet, target, "", "Accept-Encoding", "gzip")
		require.Equal(t, http.StatusOK, resp.StatusCode, target)
		require.Equal(t, want, resp.Header.Get("Content-Encoding"), target)
		if want == "gzip" {
			r, err := gzip.NewReader(resp.Body)
			require.NoError(t, err)
			_, err = io.Copy(io.Discard, r)
			require.NoError(t, err)
		}
		plain := send(t, server, http.MethodGet, target, "", "Accept-Encoding", "identity")
		require.Empty(t, plain.Header.Get("Content-Encoding"), target)
	}
	past := "/v1/series?key=a&to=" + strconv.FormatInt(now.Add(-time.Second).UnixMilli(), 10)
	tag := send(t, server, http.MethodGet, past, "").Header.Get("ETag")
	require.NotEmpty(t, tag)
	require.Equal(t, tag, send(t, server, http.MethodGet, past, "", "Accept-Encoding", "gzip").Header.Get("ETag"))
	resp := send(t, server, http.MethodGet, past, "", "Accept-Encoding", "gzip", "If-None-Match", tag)
	require.Equal(t, http.StatusNotModified, resp.StatusCode)
	require.Empty(t, resp.Header.Get("Content-Encoding"))
	require.Empty(t, apitest.ReadBody(t, resp))
	// HEAD says what GET would, without a body.
	for _, target := range []string{past, goodTarget, "/v1/live?key=a&window=10m", "/healthz", "/docs",
		"/openapi.json", "/metrics"} {
		resp := send(t, server, http.MethodHead, target, "")
		require.Equal(t, http.StatusOK, resp.StatusCode, target)
		require.Empty(t, apitest.ReadBody(t, resp), target)
	}
}

// Buffers serve one answer after another. Nothing of one request may reach another.
func TestAnswersAtTheSameTimeAreTheirOwn(t *testing.T) {
	t.Parallel()
	h := serveFake(t).handler()
	ask := func(key string) string {
		data, err := io.ReadAll(apitest.Send(h, http.MethodGet, "/v1/total?window=1h&key="+key, "").Body)
		if err != nil {
			t.Error(err)
		}
		return string(data)
	}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			key := strings.Repeat(string(rune('a'+i)), 1+100*i%500)
			want := ask(key)
			for range 20 {
				if got := ask(key); got != want || !strings.Contains(got, key) {
					t.Errorf("got %s, want %s", got, want)
				}
			}
		})
	}
	all.Wait()
}

// What browsers send for an image, for a form and for fetch without asking, in 2026 and, the last one, before
// 2020. Images and pages of services that are neither on this machine nor HTTPS tell nothing of where they
// are.
var (
	mozilla   = []string{"User-Agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"}
	image     = append([]string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image"}, mozilla...)
	form      = append([]string{"Origin", "https://evil.example", "Content-Type", "text/plain", "Sec-Fetch-Site", "cross-site"}, mozilla...)
	sandbox   = append([]string{"Origin", "null", "Content-Type", "application/x-www-form-urlencoded"}, mozilla...)
	sameSite  = append([]string{"Origin", "http://query.test:3000", "Sec-Fetch-Site", "same-site", "Content-Type", "text/plain"}, mozilla...)
	oldForm   = append([]string{"Referer", "https://evil.example/", "Content-Type", "text/plain"}, mozilla...)
	ownPage   = append([]string{"Origin", "http://query.test", "Sec-Fetch-Site", "same-origin", "Content-Type", "application/json"}, mozilla...)
	namedPage = append([]string{"Origin", "https://shop.example.com", "Sec-Fetch-Site", "cross-site", "Content-Type", "application/vnd.take+json; charset=utf-8"}, mozilla...)
	curlForm  = []string{"User-Agent", "curl/8.14.1", "Content-Type", "application/x-www-form-urlencoded"}
)

var browsers = map[string][]string{
	"": nil, "curlForm": curlForm, "ownPage": ownPage, "form": form, "sandbox": sandbox, "sameSite": sameSite,
	"oldForm": oldForm,
	"mozilla": mozilla, "namedPage": namedPage, "image": image,
}

// pretend adds the fields that a kind of browser sends, except for those that the request has.
func pretend(t *testing.T, c apitest.Request) {
	t.Helper()
	headers, known := browsers[c.Options["like"]]
	require.True(t, known, c.String())
	for i := 0; i < len(headers); i += 2 {
		if c.Header.Get(headers[i]) == "" {
			c.Header.Set(headers[i], headers[i+1])
		}
	}
}

// unreadableBody is that of a proxy's client, which is not for the service.
type unreadableBody struct{ t *testing.T }

func (u unreadableBody) Read([]byte) (int, error) {
	u.t.Error("the body is read")
	return 0, io.EOF
}

// A page of another origin takes, resets and erases nothing, whatever kind of request it makes its visitor's
// browser send. Other callers do as before.
func TestForeignPagesChangeNothing(t *testing.T) {
	t.Parallel()
	s := serveFake(t, countNamed)
	require.NoError(t, s.limits.Proxies.UnmarshalText([]byte("10.0.0.0/8")))
	h := s.handler()
	for _, c := range apitest.ReadRequests(t, "testdata/browsers.txt") {
		s.middleware.origins = web.Origins{}
		if origins := c.Options["origins"]; origins != "" {
			require.NoError(t, s.middleware.origins.UnmarshalText([]byte(origins)))
		}
		setTokens(t, s.service, c.Options["token"])
		s.limiter.asked = nil
		pretend(t, c)
		r := c.HTTP()
		r.Host, r.RemoteAddr = "query.test", "192.0.2.9:999" // no trusted proxy's
		if limitapi.IsAuthz(r.URL.Path) {
			r.Body, r.ContentLength = io.NopCloser(unreadableBody{t}), 7
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		resp := w.Result()
		changed := s.limiter.asked != nil || c.Target == "/v1/counters?key=a" && resp.StatusCode < 300
		if resp.StatusCode != c.Status || changed != (c.Status < 300) {
			t.Errorf("%s: status %d, want %d; asked %v", c, resp.StatusCode, c.Status, s.limiter.asked)
		}
		if c.Status == http.StatusForbidden && c.Method != http.MethodHead {
			p := apitest.RequireProblem(t, resp, c.Status)
			require.Equal(t, web.ForeignOrigin.Type(), p.Type)
			require.Contains(t, p.Detail, map[bool]string{true: "X-Forwarded-For", false: "QUERY_CORS_ORIGINS"}[limitapi.IsAuthz(r.URL.Path)])
		}
	}
	// Questions stay open to all: no page can read the answers unless QUERY_CORS_ORIGINS lets it.
	s.middleware.origins = web.Origins{}
	setTokens(t, s.service, "")
	for _, headers := range [][]string{image, form, oldForm, mozilla} {
		requireTotals(t, apitest.Send(h, http.MethodGet, goodTarget, "", headers...))
		for _, path := range []string{totalPath, uniquesPath} {
			requireTotals(t, apitest.Send(h, http.MethodPost, path, `{"keys":["a"],"windows":["1h"]}`, headers...))
		}
	}
}

// A page that has given its own name the address of the service (DNS rebinding) is of the same origin, may
// send any header and reads every answer. It gets none. testdata/hosts.txt has what it asks, and what others
// may.
func TestReboundPagesGetNothing(t *testing.T) {
	t.Parallel()
	// A rebound page has no certificate of its name, and no token. A browser can run on the proxy's machine.
	services, servers := map[string]fakeService{}, map[string]*httptest.Server{}
	for name, change := range map[string]func(*Settings){
		"":           func(s *Settings) { _ = s.TrustedProxies.UnmarshalText([]byte("127.0.0.1/32")) },
		"no proxies": func(*Settings) {},
		"https":      func(*Settings) {}, "tokens": func(s *Settings) { _ = s.Tokens.UnmarshalText([]byte("secret")) },
		"named": func(s *Settings) { _ = s.Hosts.UnmarshalText([]byte("stats.example.com")) },
	} {
		services[name] = serveFake(t, countNamed, change)
		runHealth(t, services[name].service)
		servers[name] = startServer(t, services[name].handler())
	}
	awaitReady(t, services[""].handler(), http.StatusOK)
	servers["https"].Close()
	servers["https"] = httptest.NewTLSServer(services["https"].handler())
	t.Cleanup(servers["https"].Close)
	for _, c := range apitest.ReadRequests(t, "testdata/hosts.txt") {
		pretend(t, c)
		s, server := services[c.Options["service"]], servers[c.Options["service"]]
		u, err := url.Parse(server.URL)
		require.NoError(t, err)
		host := c.Options["host"]
		ways := [][]string{nil}
		if host == "evil.example" {
			fields := []string{"Content-Type", "application/json", "X-Forwarded-For", "192.0.2.1", "X-Original-Uri",
				"/", "User-Agent", "Mozilla/5.0"}
			ways = [][]string{nil, fields, append([]string{"Origin", "http://evil.example:" + u.Port(),
				"Sec-Fetch-Site", "same-origin"}, fields...)}
		}
		if !strings.Contains(host, ":") { // as a browser that has loaded a page from this port
			host = net.JoinHostPort(host, u.Port())
		}
		for _, headers := range ways {
			s.limiter.asked = nil
			headers = append([]string{"Host", host}, headers...)
			for name, values := range c.Header {
				headers = append(headers, name, values[0])
			}
			resp := send(t, server, c.Method, c.Target, c.Body, headers...)
			if c.Status == http.StatusOK {
				require.Equal(t, c.Status, resp.StatusCode, "%s of %s", c, host)
				continue
			}
			p := apitest.RequireProblem(t, resp, c.Status)
			require.Contains(t, p.Type+" "+p.Detail, c.Want, c.String())
			require.Nil(t, s.limiter.asked, c.String())
		}
	}
}

// Bodies that do not end take no more memory than the budget has, over any number of connections, or as
// streams of few. Takes with small bodies are decided meanwhile.
func TestUnfinishedBodiesStayWithinTheBudget(t *testing.T) {
	t.Parallel()
	for _, overHTTP2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("HTTP2=%v", overHTTP2), func(t *testing.T) {
			t.Parallel()
			s := serveFake(t)
			server := httptest.NewUnstartedServer(s.handler())
			t.Cleanup(server.Close)
			if server.EnableHTTP2 = overHTTP2; overHTTP2 {
				server.StartTLS()
			} else {
				server.Start()
			}
			stack.HoldUnfinishedBodies(t, server, s.middleware.bodies, 64<<20, "/v1/total", 150, 600<<10, func() {
				resp := send(t, server, http.MethodPost, "/v1/take", `{"limit":"login","key":"alice"}`)
				require.Equal(t, http.StatusOK, resp.StatusCode)
				resp.Body.Close()
			})
		})
	}
}

// A list of as many takes as are allowed, with the longest names in the longest spelling, is read, and
// nothing much larger. Questions may be longer.
func TestBodyOfATakeHasRoomForTheLongestList(t *testing.T) {
	t.Parallel()
	s := serveFake(t, func(settings *Settings) {
		text := testLimits + "  - {name: " + strings.Repeat("l", 64) + ", window: 1m, max: 1000000000000}\n"
		require.NoError(t, os.WriteFile(settings.LimitsFile, []byte(text), 0o600))
	})
	server := httptest.NewServer(s.handler())
	t.Cleanup(server.Close)
	escaped := func(c byte, n int) string { return strings.Repeat(fmt.Sprintf(`\u%04x`, c), n) }
	var items []string
	for i := range limitapi.MaxTakes {
		items = append(items, fmt.Sprintf(`{"limit":"%s","key":"%s","n":%d,"id":"%s"}`, strings.Repeat("l", 64),
			escaped(byte('a'+i), hit.MaxName), int64(limit.MaxHits), escaped('i', 128)))
	}
	body := `{"take":[` + strings.Join(items, ",") + `]}`
	resp := send(t, server, http.MethodPost, "/v1/take", body)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", apitest.ReadBody(t, resp))
	body += strings.Repeat(" ", limitapi.MaxBody+1-len(body))
	p := apitest.RequireProblem(t, send(t, server, http.MethodPost, "/v1/take", body), http.StatusRequestEntityTooLarge)
	require.Contains(t, p.Detail, "65536 bytes")
	resp = send(t, server, http.MethodPost, "/v1/total", `{"keys":["a"],"windows":["1m"]}`+strings.Repeat(" ", limitapi.MaxBody))
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", apitest.ReadBody(t, resp))
}
