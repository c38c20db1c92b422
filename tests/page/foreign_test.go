package page_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// attack is a page that tries everything that a page can make a browser send to another origin without
// asking, and what it has to ask for.
const attack = `<!doctype html><title>a page</title><iframe name="hidden"></iframe>
<form id="form" method="post" enctype="text/plain" action="Q/v1/take" target="hidden"><input name='{"limit":"a","key":"k","x":"' value='"}'></form>
<script type="module">
const q = "Q", body = JSON.stringify({ limit: "a", key: "k" }), authz = q + "/v1/authz?limit=a&key_header=User-Agent";
const loaded = (node) => new Promise((resolve) => { node.onload = node.onerror = resolve; document.body.append(node); });
const frame = document.createElement("iframe");
frame.src = authz;
const image = new Image();
image.src = authz + "&";
const quiet = new Image();
quiet.referrerPolicy = "no-referrer";
quiet.src = q + "/v1/authz/agent/cart";
const script = document.createElement("script");
script.src = q + "/v1/authz/agent/script";
navigator.sendBeacon(q + "/v1/take", body);
document.getElementById("form").submit();
await Promise.allSettled([
  fetch(q + "/v1/take", { method: "POST", mode: "no-cors", body }),
  fetch(q + "/v1/take", { method: "POST", mode: "no-cors", body: new Blob([body]) }),
  fetch(q + "/v1/take", { method: "POST", mode: "no-cors", body: new URLSearchParams({ [body]: "" }) }),
  fetch(q + "/v1/take", { method: "POST", body, headers: { "Content-Type": "application/json" } }),
  fetch(q + "/v1/limit?limit=a&key=k", { method: "DELETE" }),
  fetch(authz, { mode: "no-cors" }),
  fetch(authz, { headers: { "X-Forwarded-For": "192.0.2.1" } }),
  fetch(authz, { mode: "no-cors", method: "POST", body }),
  loaded(frame), loaded(image), loaded(quiet), loaded(script),
]);
document.title = "done";
</script>`

// startAttacker serves a page that attacks a service.
func startAttacker(t *testing.T, address string) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprint(w, strings.NewReplacer("\"Q\"", "\""+address+"\"", "\"Q/", "\""+address+"/").Replace(attack))
	}))
	t.Cleanup(s.Close)
	return s
}

// No page of another origin takes or resets anything through its visitor's browser.
func TestForeignPagesChangeNothing(t *testing.T) {
	file := write(t, "limits:\n- {name: a, window: 1h, max: 100}\n- {name: agent, window: 1h, max: 100, key: \"{header.User-Agent}\"}\n")
	s := start(t, "QUERY_LIMITS_FILE="+file, "QUERY_TRUSTED_PROXIES=127.0.0.1/32,::1/128")
	status, text, err := stack.Do(http.MethodPost, s.query.URL()+"/v1/take", map[string]any{"limit": "a", "key": "k", "n": 10})
	if err != nil || status != http.StatusOK {
		t.Fatalf("status %d: %s (%v)", status, text, err)
	}
	u, err := url.Parse(s.query.URL())
	require.NoError(t, err)
	for _, c := range []struct{ page, query string }{
		{"evil.example", "127.0.0.1"}, {"evil.example", "localhost"}, {"127.0.0.1", "127.0.0.1"}, {"evil.example", "evil.example"},
	} {
		page, err := url.Parse(startAttacker(t, "http://"+c.query+":"+u.Port()).URL)
		require.NoError(t, err)
		before := countRefusals(t, s)
		b := open(t, "http://"+c.page+":"+page.Port()+"/", desktop)
		b.until("the page to have tried everything", `document.title === "done"`)
		stack.Eventually(t, "the refusals", func() (bool, string) {
			n := countRefusals(t, s) - before
			return n >= 8, fmt.Sprint(n)
		})
	}
	status, text, err = stack.Do(http.MethodGet, s.query.URL()+"/v1/limit?limit=a&key=k", nil)
	if err != nil || status != http.StatusOK || !strings.Contains(string(text), `"remaining":90,`) {
		t.Errorf("status %d: %s (%v)", status, text, err)
	}
	require.Len(t, stack.Scan(t, s.redis.Client(), "*:limit:*"), 1, "what the pages have left")
}

var refused = regexp.MustCompile(`tallyroll_query_request_seconds_count\{code="403",route="[^"]*"\} (\d+)`)

// countRefusals is how many requests query has refused with 403.
func countRefusals(t *testing.T, s *system) (n int) {
	t.Helper()
	_, text, err := stack.Do(http.MethodGet, s.query.URL()+"/metrics", nil)
	require.NoError(t, err)
	for _, m := range refused.FindAllStringSubmatch(string(text), -1) {
		var count int
		_, _ = fmt.Sscan(m[1], &count)
		n += count
	}
	return n
}

// A page whose name leads to the service (DNS rebinding) is of its origin, and reads nothing of it.
func TestReboundPageReadsNothing(t *testing.T) {
	s := start(t)
	s.hit("a")
	stack.EventuallyTotal(t, s.query.URL(), "a", "1h", 1)
	u, err := url.Parse(s.query.URL())
	require.NoError(t, err)
	b := open(t, "http://evil.example:"+u.Port()+"/healthz", desktop)
	b.until("the page", `document.body.innerText.trim() === "ok" && location.hostname === "evil.example"`)
	for path, options := range map[string]string{
		"/v1/counters": "{}", "/v1/total?key=a&window=1h": `{ headers: { "X-Forwarded-For": "192.0.2.1" } }`, "/": "{}",
		"/v1/take": `{ method: "POST", body: '{"limit":"a","key":"k"}', headers: { "Content-Type": "application/json" } }`,
	} {
		eval[bool](b, fmt.Sprintf(`(window.got = undefined, fetch(%q, %s).then(async (r) => { window.got = r.status + await r.text() }, (e) => { window.got = String(e) }), true)`, path, options))
		b.until("an answer", `window.got !== undefined`)
		if got := eval[string](b, `window.got`); !strings.HasPrefix(got, "403") || !strings.Contains(got, "QUERY_HOSTS") {
			t.Errorf("%s: %s", path, got)
		}
	}
}

// With QUERY_FRAME_ANCESTORS, pages of that origin show the page in a frame, and it asks its questions there.
// Those of other origins show nothing of it.
func TestPageInAFrame(t *testing.T) {
	chromium(t)
	shop := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprintf(w, `<!doctype html><title>a shop</title><iframe src="%s/?key=a" width="800" height="600"></iframe>`, r.FormValue("of"))
	}))
	t.Cleanup(shop.Close)
	s := start(t, "QUERY_FRAME_ANCESTORS="+shop.URL)
	s.hit("a")
	open := func(host string) *tab {
		return open(t, strings.Replace(shop.URL, "127.0.0.1", host, 1)+"/?of="+url.QueryEscape(s.query.URL()), desktop)
	}
	b := open("127.0.0.1")
	stack.Eventually(t, "the page to ask from its frame", func() (bool, string) {
		b.mu.Lock()
		defer b.mu.Unlock()
		return slices.ContainsFunc(b.requests, func(url string) bool { return strings.HasPrefix(url, s.query.URL()+"/v1/") }), fmt.Sprint(b.requests, b.errors)
	})
	other := open("evil.example")
	stack.Eventually(t, "the browser to refuse", func() (bool, string) {
		other.mu.Lock()
		defer other.mu.Unlock()
		return strings.Contains(fmt.Sprint(other.errors), "frame-ancestors "+shop.URL), fmt.Sprint(other.requests, other.errors)
	})
	require.NotContains(t, fmt.Sprint(b.errors), "frame-ancestors")
	require.Zero(t, other.asks("/v1/"), "what the page asks in a frame that is refused")
}
