package page_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// snippets are the script and the image of docs/collect.md, with the address of the test's own collect.
func snippets(t *testing.T, collect string) (script, image string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/collect.md")
	require.NoError(t, err)
	found := regexp.MustCompile("(?s)```html\n(.*?)```").FindAllSubmatch(text, -1)
	if len(found) != 2 {
		t.Fatalf("docs/collect.md has %d snippets, want a script and an image", len(found))
	}
	here := func(html []byte) string {
		out := strings.Replace(string(html), "https://collect.example.com", collect, 1)
		require.Contains(t, out, collect, "the snippet does not name https://collect.example.com")
		return out
	}
	return here(found[0][1]), here(found[1][1])
}

// site is a server whose pages hold the script, or the image in the page plain. Below /old/ the browser has
// no sendBeacon, and a page called silent tells images nothing of where they are, unless they ask.
func site(t *testing.T, script, image *string) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/favicon.ico" {
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		before := ""
		if strings.HasPrefix(r.URL.Path, "/old/") {
			before = "<script>navigator.sendBeacon = undefined</script>"
		}
		if strings.HasSuffix(r.URL.Path, "/silent") {
			w.Header().Set("Referrer-Policy", "no-referrer")
		}
		holds := *script
		if r.URL.Path == "/plain" {
			holds = *image
		}
		fmt.Fprintf(w, "<!doctype html><title>a page</title>%s%s<p>Hello.", before, holds)
	}))
	t.Cleanup(s.Close)
	return s
}

// The snippet of the docs counts the views of a page of an allowed origin, with beacons and with images. The
// same snippet in a page of another origin counts nothing, and neither leaves anything in the browser.
func TestSnippetCountsViews(t *testing.T) {
	var script, img string
	shop, other := site(t, &script, &img), site(t, &script, &img)
	s := start(t)
	collect := stack.Collect(t, s.nats, "COLLECT_ORIGINS=https://shop.example.com,"+shop.URL, "COLLECT_BEACON_PREFIX=web.")
	script, img = snippets(t, collect.URL())
	beacon, image := collect.URL()+"/v1/beacon", collect.URL()+"/v1/hit.gif"
	for _, view := range []struct {
		site    *httptest.Server
		path    string
		address string // where the page sends its view
		status  int64
	}{
		{shop, "/cart", beacon, http.StatusNoContent},
		{shop, "/cart", beacon, http.StatusNoContent},
		{shop, "/a%20b/ü", beacon, http.StatusNoContent},
		{shop, "/old/cart", image, http.StatusOK},
		{shop, "/old/silent", image, http.StatusOK},
		{shop, "/plain", image, http.StatusOK},
		{other, "/plain", image, http.StatusForbidden},
		{other, "/cart", beacon, http.StatusForbidden},
		{other, "/old/cart", image, http.StatusForbidden},
	} {
		b := open(t, view.site.URL+view.path, desktop)
		stack.Eventually(t, fmt.Sprintf("status %d of %s for %s%s", view.status, view.address, view.site.URL, view.path), func() (bool, string) {
			status := b.statusOf(view.address)
			return status == view.status, fmt.Sprint(status)
		})
		require.Equal(t, "00", eval[string](b, `document.cookie + localStorage.length + sessionStorage.length`), "%s leaves something in the browser", view.path)
	}
	for key, want := range map[string]int64{"web./cart": 3, "web./a%20b/%C3%BC": 1, "web./old/cart": 1, "web./old/silent": 1} {
		stack.EventuallyTotal(t, s.query.URL(), key, "1h", want)
	}
	status, body, err := stack.Do(http.MethodGet, s.query.URL()+"/v1/counters", nil)
	if want := `"counters":["web./a%20b/%C3%BC","web./cart","web./old/cart","web./old/silent"]`; err != nil || status != http.StatusOK || !strings.Contains(string(body), want) {
		t.Errorf("the counters are %s %d %v, want %s", body, status, err, want)
	}
}
