package query

import (
	"bytes"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/asking"
)

// The page and its files: what browsers may keep, what they need not load again, and what the page may do.
func TestPageIsServedWithItsFiles(t *testing.T) {
	t.Parallel()
	h := serveFake(t).handler()
	resp := asking.Ask(h, http.MethodGet, "/", "")
	index := string(asking.ReadAll(t, resp))
	require.Equal(t, []string{"200 OK", "text/html; charset=utf-8", "no-cache"}, []string{resp.Status, resp.Header.Get("Content-Type"), resp.Header.Get("Cache-Control")})
	const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	require.Equal(t, policy, resp.Header.Get("Content-Security-Policy"))
	tag := resp.Header.Get("ETag")
	require.NotEmpty(t, tag)
	require.Equal(t, http.StatusNotModified, asking.Ask(h, http.MethodGet, "/", "", "If-None-Match", tag).StatusCode)
	markup := regexp.MustCompile(`<code>[^<]*</code>`).ReplaceAllString(index, "") // commands to copy may name addresses
	require.NotRegexp(t, `(?i)<style|<script(?:[^>]*[^c])?>[^<]|\son\w+=|\sstyle=|https?://`, markup)
	linked := regexp.MustCompile(`(?:href|src)="(page/[0-9a-f]{16}/[^"]+)"`).FindAllStringSubmatch(index, -1)
	seen := make(map[string]bool)
	for _, m := range linked {
		seen[m[1][strings.LastIndexByte(m[1], '/')+1:]] = true
		resp := asking.Ask(h, http.MethodGet, "/"+m[1], "")
		if resp.StatusCode != http.StatusOK || !strings.Contains(resp.Header.Get("Cache-Control"), "immutable") || resp.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: status %d, %v", m[1], resp.StatusCode, resp.Header)
		}
	}
	// A module that the index does not preload would be found late, one request after the other. Those of other views
	// are loaded with them.
	files := newPage().files
	for name := range files {
		later := bytes.Contains(files["views.js"], []byte(`import("./`+name+`")`)) || bytes.Contains(files["views.js"], []byte(`styled("`+name+`", `))
		if name != pageIndex && !seen[name] && !later {
			t.Errorf("the index does not name %s", name)
		}
	}
	if resp := asking.Ask(h, http.MethodGet, "/page/0123456789abcdef/main.js", ""); resp.StatusCode != http.StatusOK || resp.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("another build's module: status %d, %v", resp.StatusCode, resp.Header)
	}
	for _, target := range []string{"/page/x/nothing.js", "/page/x/index.html", "/page/x", "/page/"} {
		asking.Refused(t, asking.Ask(h, http.MethodGet, target, ""), http.StatusNotFound)
	}
	require.Equal(t, http.StatusOK, asking.Ask(h, http.MethodHead, "/", "").StatusCode)
}
