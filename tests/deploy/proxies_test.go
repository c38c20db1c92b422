package deploy_test

import (
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// wide makes the limit of 10 per second one of 10 per hour, which no slow machine can wait out.
var wide = []string{"- name: per-client\n    window: 1s", "- name: per-client\n    window: 1h"}

// One client after the other, and then one thing after the other that is away.
func TestProxyAsksQueryFirst(t *testing.T) {
	forProducts(t, func(t *testing.T, the product) {
		p := newProxied(t, wide...)
		p.proxy = the.start(p, the.longerTimeout...)
		t.Run("passes and refuses", func(t *testing.T) { p.passesAndRefuses(t) })
		t.Run("asks about browsers", func(t *testing.T) { p.asksAboutBrowsers(t) })
		t.Run("leaves the service alone", func(t *testing.T) { p.leavesTheServiceAlone(t) })
		p.proxy = the.start(p, append(the.longerTimeout, the.byHeader...)...)
		t.Run("limits an API key", func(t *testing.T) { p.limitsAnAPIKey(t) })
		t.Run("goes on without Redis", func(t *testing.T) { p.goesOnWithoutRedis(t) })
	})
}

// forget resets the limits of this machine.
func (p *proxied) forget(t *testing.T) {
	t.Helper()
	for _, limit := range []string{"per-client", "login"} {
		status, body, err := stack.Do(http.MethodDelete, p.query.URL()+"/v1/limit?key=127.0.0.1&limit="+limit, nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusNoContent, status, "%s", body)
	}
	p.served.Store(0)
}

// statuses sends requests and compares what they are answered with.
func (p *proxied) statuses(t *testing.T, method, path string, headers []string, want ...int) {
	t.Helper()
	var got []int
	for range want {
		got = append(got, p.send(method, path, "", headers...).status)
	}
	require.Equal(t, want, got, "%s %s %v", method, path, headers)
}

// tenAnd are ten times 200 and then something else.
func tenAnd(last int) []int { return append(slices.Repeat([]int{http.StatusOK}, 10), last) }

func (p *proxied) passesAndRefuses(t *testing.T) {
	for i := range 10 {
		// What a client claims about itself makes no other client of it.
		got := p.send(http.MethodPost, "/cart?a=1&b=2", "a body", "X-Forwarded-For", fmt.Sprintf("192.0.2.%d", i))
		if got.status != http.StatusOK || got.body != "POST /cart?a=1&b=2 a body" {
			t.Fatalf("request %d: %d %s", i, got.status, got.body)
		}
	}
	got := p.send(http.MethodPost, "/cart", "a body", "X-Forwarded-For", "192.0.2.99")
	require.Equal(t, http.StatusTooManyRequests, got.status, "request 11: %s", got.body)
	for name, want := range map[string]string{"Retry-After": "3", "RateLimit": `"per-client";r=0;t=3`, "RateLimit-Policy": `"per-client";q=10;w=3600`} {
		if values := got.header.Values(name); len(values) != 1 || !strings.HasPrefix(values[0], want) {
			t.Errorf("the refusal has %s: %q, want %s…", name, values, want)
		}
	}
	if !strings.HasPrefix(got.header.Get("Content-Type"), "application/") || !strings.HasPrefix(got.body, "{") {
		t.Errorf("the refusal is %s: %s", got.header.Get("Content-Type"), got.body)
	}
	require.EqualValues(t, 10, p.served.Load(), "requests have reached the service")
	if logs := p.proxy.Logs(); strings.Contains(logs, "[error]") || strings.Contains(logs, `"level":"error"`) {
		t.Error("a refusal is an error in the log of the proxy")
	}
	// /login has limits of its own.
	p.statuses(t, http.MethodPost, "/login", nil, 200, 200, 200, 200, 200, 429, 429)
}

// What a browser sends to the service for a page of another origin is the service's business: query counts
// it, whatever the proxy passes on.
func (p *proxied) asksAboutBrowsers(t *testing.T) {
	p.forget(t)
	for _, headers := range [][]string{
		{"Origin", "https://pages.example", "Sec-Fetch-Site", "cross-site", "Content-Type", "text/plain"},
		{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "image"}, {"Referer", "https://pages.example/"}, {"Origin", "null"},
	} {
		headers = append(headers, "Host", "shop.example.com", "User-Agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0")
		p.statuses(t, http.MethodGet, "/cart", headers, http.StatusOK)
		p.statuses(t, http.MethodPost, "/cart", headers, http.StatusOK)
	}
	p.statuses(t, http.MethodGet, "/", nil, 200, 200, 429)
	require.EqualValues(t, 10, p.served.Load(), "requests have reached the service")
}

// What the service itself answers goes to the client as it is.
func (p *proxied) leavesTheServiceAlone(t *testing.T) {
	p.forget(t)
	for path, want := range map[string]int{"/forbidden": http.StatusForbidden, "/broken": http.StatusInternalServerError} {
		got := p.send(http.MethodGet, path, "")
		if got.status != want || !strings.HasPrefix(got.body, "the service's own") || got.header.Get("Retry-After") != "" {
			t.Errorf("%s: %d %v %s", path, got.status, got.header, got.body)
		}
	}
	p.send(http.MethodGet, "/_limit", "")
	if n := p.served.Load(); n > 3 {
		t.Errorf("the service was asked %d times", n)
	}
}

// The key can be a header, as the comments of the examples say.
func (p *proxied) limitsAnAPIKey(t *testing.T) {
	p.statuses(t, http.MethodGet, "/", []string{"X-Api-Key", "k1"}, tenAnd(http.StatusTooManyRequests)...)
	p.statuses(t, http.MethodGet, "/", []string{"X-Api-Key", "k2"}, http.StatusOK)
	p.statuses(t, http.MethodGet, "/", nil, http.StatusBadRequest)
}

// per-client is local: the process counts by itself. login is closed.
func (p *proxied) goesOnWithoutRedis(t *testing.T) {
	p.forget(t) // or query refuses logins because it remembers that it has
	p.redis.Kill()
	p.statuses(t, http.MethodGet, "/", []string{"X-Api-Key", "k3"}, tenAnd(http.StatusTooManyRequests)...)
	got := p.send(http.MethodGet, "/login", "")
	if got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") == "" {
		t.Errorf("login without Redis: %d %v %s, want 503", got.status, got.header, got.body)
	}
}

func TestProxyOpensWithoutRedis(t *testing.T) {
	forProducts(t, func(t *testing.T, the product) {
		p := newProxied(t, wide[0], wide[1]+"\n    fail: open")
		p.proxy = the.start(p, the.longerTimeout...)
		p.redis.Kill()
		p.statuses(t, http.MethodGet, "/", nil, tenAnd(http.StatusOK)...)
	})
}

// Query hanging or killed: the examples let requests through but no logins, and can be told to refuse all.
func TestProxyWithoutQuery(t *testing.T) {
	forProducts(t, func(t *testing.T, the product) {
		p := newProxied(t, wide...)
		opens, closes := the.start(p), the.start(p, the.refuse...)
		for _, away := range []struct {
			how      func()
			requests int
		}{{p.query.Pause, 2}, {p.query.Kill, 12}} { // each takes a second while query hangs
			away.how()
			p.proxy = opens
			p.statuses(t, http.MethodPost, "/", nil, slices.Repeat([]int{http.StatusOK}, away.requests)...)
			p.statuses(t, http.MethodPost, "/login", nil, http.StatusServiceUnavailable)
			p.proxy = closes
			p.statuses(t, http.MethodPost, "/", nil, slices.Repeat([]int{http.StatusServiceUnavailable}, away.requests)...)
		}
	})
}

// A request whose own connection to query fails passes, and none after it.
func TestProxyPassesOnlyWhatQueryDoesNotAnswer(t *testing.T) {
	forProducts(t, func(t *testing.T, the product) {
		p := newProxied(t, wide...)
		way := p.throughBalancer()
		p.proxy = the.start(p, the.longerTimeout...)
		p.statuses(t, http.MethodPost, "/", nil, tenAnd(http.StatusTooManyRequests)...)
		for range 3 {
			way.MoveTo(fmt.Sprintf("127.0.0.1:%d", stack.FreePort(t))) // where nothing listens
			way.CutReply()
			p.statuses(t, http.MethodPost, "/", nil, http.StatusOK)
			way.MoveTo(p.query.Addr())
			var wait sync.WaitGroup
			for range 40 {
				wait.Go(func() {
					got, err := p.trySend(http.MethodPost, "/", "")
					if err != nil || got.status != http.StatusTooManyRequests {
						t.Errorf("after a failed dial: %d %s (%v)", got.status, got.body, err)
					}
				})
			}
			wait.Wait()
		}
	})
}

// What a client sends is no reason to let it through, nor to close the connection to query.
func TestProxyRefusesLargeHeaders(t *testing.T) {
	forProducts(t, func(t *testing.T, the product) {
		p := newProxied(t, wide...)
		way := p.throughBalancer()
		p.proxy = the.start(p, the.longerTimeout...)
		p.statuses(t, http.MethodGet, "/", nil, tenAnd(http.StatusTooManyRequests)...)
		dialed := way.Dialed()
		for size := 1 << 10; size <= 1<<20; size *= 2 {
			for shape, head := range map[string]string{
				"header":  "GET / HTTP/1.1\r\nHost: a\r\nX-A: " + strings.Repeat("a", size),
				"headers": "GET / HTTP/1.1\r\nHost: a" + strings.Repeat("\r\na:", size/4),
				"host":    "GET / HTTP/1.1\r\nHost: " + strings.Repeat("a", size),
				"path":    "GET /" + strings.Repeat("a", size) + " HTTP/1.1\r\nHost: a",
				"bytes":   "GET /" + strings.Repeat("\xff", size) + " HTTP/1.1\r\nHost: a", // each is three, escaped
			} {
				status := p.sendRaw(head + "\r\n\r\n")
				if status < 400 || status > 499 || size >= 1<<16 && shape == "header" && status != the.tooLarge {
					t.Errorf("%s of %d bytes: %d", shape, size, status)
				}
			}
		}
		require.EqualValues(t, 10, p.served.Load(), "requests have reached the service")
		if the.name == "caddy" { // nginx does not keep the connection of a refusal
			require.Equal(t, dialed, way.Dialed(), "connections to query")
		}
	})
}

// With the lines for them, pages of other origins can read a refusal, and preflights do not count. Requests
// that only resemble one do.
func TestProxyServesPagesOfOtherOrigins(t *testing.T) {
	forProducts(t, func(t *testing.T, the product) {
		p := newProxied(t, wide...)
		p.origins = true
		p.proxy = the.start(p, the.longerTimeout...)
		page := []string{"Origin", "https://pages.example"}
		preflight := append(page, "Access-Control-Request-Method", "POST")
		p.statuses(t, http.MethodOptions, "/", preflight, slices.Repeat([]int{http.StatusOK}, 12)...)
		p.statuses(t, http.MethodPost, "/", preflight, slices.Repeat([]int{http.StatusOK}, 4)...)
		p.statuses(t, http.MethodOptions, "/", page, slices.Repeat([]int{http.StatusOK}, 5)...)
		for _, want := range []int{http.StatusOK, http.StatusTooManyRequests} {
			got := p.send(http.MethodGet, "/", "", page...)
			require.Equal(t, want, got.status)
			require.Equal(t, []string{"https://pages.example"}, got.header.Values("Access-Control-Allow-Origin"), want)
			if want == http.StatusTooManyRequests {
				require.Contains(t, got.header.Get("Access-Control-Expose-Headers"), "Retry-After")
			}
		}
		p.statuses(t, http.MethodOptions, "/", preflight, http.StatusOK)
		p.statuses(t, http.MethodPost, "/", preflight, http.StatusTooManyRequests)
		p.statuses(t, http.MethodOptions, "/", page, http.StatusTooManyRequests)
	})
}

// A load of 100 per second is let through at 10 per second. LOAD says for how long (make proxies: 30s).
func TestProxyUnderLoad(t *testing.T) {
	const perSecond = 100
	// In a short time one burst of 10 more or less matters. A busy machine sends late and in bursts, so few may
	// pass.
	length, least, most, policies := 4*time.Second, 1.0, 14.0, []string{"cells"}
	if load := os.Getenv("LOAD"); load != "" || stack.All() {
		policies = append(policies, "log")
		if load != "" {
			var err error
			length, err = time.ParseDuration(load)
			require.NoError(t, err)
		}
		if length >= 30*time.Second {
			least, most = 9, 11
		}
	}
	forProducts(t, func(t *testing.T, the product) {
		for _, policy := range policies {
			t.Run(policy, func(t *testing.T) {
				t.Parallel()
				p := newProxied(t, "window: 1s\n    max: 10\n", "window: 1s\n    max: 10\n    policy: "+policy+"\n")
				p.proxy = the.start(p, the.longerTimeout...)
				began := time.Now()
				passed, refused := p.load(length, perSecond)
				took := time.Since(began) // longer than asked for on a busy machine
				rate := float64(passed) / took.Seconds()
				t.Logf("%s: %d let through in %v (%.2f per second), %d refused", policy, passed, took, rate, refused)
				most := most
				if p.decidedAlone() {
					most += 10 // Redis was too slow: the process counted by itself, in addition to what Redis had counted
				}
				if rate < least || rate > most || passed != p.served.Load() {
					t.Errorf("%.2f per second, %d of which reached the service; want %v to %v", rate, p.served.Load(), least, most)
				}
			})
		}
	})
}

var decidedLocally = regexp.MustCompile(`tallyroll_limit_decisions_total\{[^}]*source="local"[^}]*\} [1-9]`)

// decidedAlone reports whether query made a decision without Redis.
func (p *proxied) decidedAlone() bool {
	p.t.Helper()
	_, body, err := stack.Do(http.MethodGet, p.query.URL()+"/metrics", nil)
	require.NoError(p.t, err)
	return decidedLocally.Match(body)
}

// load sends requests at a rate, whether the earlier ones have been answered or not.
func (p *proxied) load(length time.Duration, perSecond int) (passed, refused int64) {
	// After a burst into one cell, the wait is the window and that cell: more than a second.
	waits := []string{"1", "2"}
	var wait sync.WaitGroup
	var ok, no atomic.Int64
	ticker := time.NewTicker(time.Second / time.Duration(perSecond))
	defer ticker.Stop()
	for range int(length.Seconds() * float64(perSecond)) {
		<-ticker.C
		wait.Go(func() {
			got, err := p.trySend(http.MethodGet, "/", "")
			switch {
			case err != nil:
				p.t.Error(err)
			case got.status == http.StatusOK:
				ok.Add(1)
			case got.status == http.StatusTooManyRequests && slices.Contains(waits, got.header.Get("Retry-After")):
				no.Add(1)
			default:
				p.t.Errorf("%d %v %s", got.status, got.header, got.body)
			}
		})
	}
	wait.Wait()
	return ok.Load(), no.Load()
}
