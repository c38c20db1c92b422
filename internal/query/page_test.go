package query

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// The page and its files: what browsers may keep, what they need not load again, and what the page may do.
func TestPageIsServed(t *testing.T) {
	s, _ := onFake(t)
	h := s.handler()
	resp := ask1(h, http.MethodGet, "/", "")
	index := string(readAll(t, resp))
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/html; charset=utf-8" || resp.Header.Get("Cache-Control") != "no-cache" {
		t.Fatalf("status %d, %v", resp.StatusCode, resp.Header)
	}
	const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	if got := resp.Header.Get("Content-Security-Policy"); got != policy {
		t.Errorf("policy %q", got)
	}
	tag := resp.Header.Get("ETag")
	if again := ask1(h, http.MethodGet, "/", "", "If-None-Match", tag); tag == "" || again.StatusCode != http.StatusNotModified {
		t.Errorf("tag %q: status %d", tag, again.StatusCode)
	}
	markup := regexp.MustCompile(`<code>[^<]*</code>`).ReplaceAllString(index, "") // commands to copy may name addresses
	if inline := regexp.MustCompile(`(?i)<style|<script(?:[^>]*[^c])?>[^<]|\son\w+=|\sstyle=|https?://`).FindString(markup); inline != "" {
		t.Errorf("the page has %q", inline)
	}
	linked := regexp.MustCompile(`(?:href|src)="(page/[0-9a-f]{16}/[^"]+)"`).FindAllStringSubmatch(index, -1)
	seen := make(map[string]bool)
	for _, m := range linked {
		seen[m[1][strings.LastIndexByte(m[1], '/')+1:]] = true
		resp := ask1(h, http.MethodGet, "/"+m[1], "")
		if resp.StatusCode != http.StatusOK || !strings.Contains(resp.Header.Get("Cache-Control"), "immutable") || resp.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: status %d, %v", m[1], resp.StatusCode, resp.Header)
		}
	}
	// A module that the index does not preload would be found late, one request after the other.
	for name := range newPage().files {
		if name != pageIndex && !seen[name] {
			t.Errorf("the index does not name %s", name)
		}
	}
	if resp := ask1(h, http.MethodGet, "/page/0123456789abcdef/main.js", ""); resp.StatusCode != http.StatusOK || resp.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("another build's module: status %d, %v", resp.StatusCode, resp.Header)
	}
	for _, target := range []string{"/page/x/nothing.js", "/page/x/index.html", "/page/x", "/page/"} {
		refused(t, ask1(h, http.MethodGet, target, ""), http.StatusNotFound)
	}
	if resp := ask1(h, http.MethodHead, "/", ""); resp.StatusCode != http.StatusOK {
		t.Errorf("HEAD: status %d", resp.StatusCode)
	}
}

// The page needs no token, or nobody could enter one.
func TestPageNeedsNoToken(t *testing.T) {
	settings := testSettings
	err := settings.Tokens.UnmarshalText([]byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	s, f := onFake(t)
	s = newService(f, f, s.limits, settings, s.log)
	for _, target := range []string{"/", "/page/" + newPage().version + "/main.js"} {
		if resp := ask1(s.handler(), http.MethodGet, target, ""); resp.StatusCode != http.StatusOK {
			body, _ := io.ReadAll(resp.Body)
			t.Errorf("%s: status %d: %s", target, resp.StatusCode, body)
		}
	}
}

// Texts stand out from all that can be behind them by 4.5 to 1 (WCAG 2.2, 1.4.3), the edges of
// controls by 3 to 1 (1.4.11), in both modes. The lines are those of the charts of /v1/series.
func TestPageColors(t *testing.T) {
	css := string(newPage().files["style.css"])
	light, dark, ok := strings.Cut(css, "@media (prefers-color-scheme: dark)")
	if !ok {
		t.Fatal("style.css has no dark mode")
	}
	chartLight, chartDark, _ := strings.Cut(chartStyle, "@media")
	for mode, of := range map[string]struct{ css, chart string }{"light": {light, chartLight}, "dark": {dark, chartDark}} {
		color := func(name string) rgb { return colorOf(t, strings.ReplaceAll(of.css, "{\n", "{ "), `:root`, `--`+name) }
		for _, pair := range []struct {
			ink, back string
			least     float64
		}{
			{"text", "back", 4.5}, {"text", "card", 4.5}, {"text", "raised", 4.5}, {"text", "wash", 4.5}, {"text", "checked", 4.5},
			{"muted", "back", 4.5}, {"muted", "card", 4.5}, {"muted", "raised", 4.5},
			{"accent", "back", 4.5}, {"accent", "card", 4.5}, {"on-accent", "accent", 4.5},
			{"green", "card", 4.5}, {"amber", "card", 4.5}, {"red", "card", 4.5}, {"amber", "amber-wash", 4.5}, {"red", "red-wash", 4.5},
			{"strong", "card", 3}, {"strong", "back", 3},
		} {
			if got := contrast(color(pair.ink), color(pair.back)); got < pair.least {
				t.Errorf("%s: %s on %s has a contrast of %.2f, at least %.1f is wanted", mode, pair.ink, pair.back, got, pair.least)
			}
		}
		for i := range maxLines {
			if got, want := color(fmt.Sprintf("line%d", i)), colorOf(t, of.chart, fmt.Sprintf(`\.line%d`, i), "stroke"); got != want {
				t.Errorf("%s: line %d is not the charts' colour", mode, i)
			}
		}
	}
}
