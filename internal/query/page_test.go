package query

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/apitest"
)

// The page and its files: what browsers may keep, what they need not load again, and what the page may do.
func TestPageIsServedWithItsFiles(t *testing.T) {
	t.Parallel()
	h := serveFake(t).handler()
	resp := apitest.Send(h, http.MethodGet, "/", "")
	index := string(apitest.ReadBody(t, resp))
	require.Equal(t, []string{"200 OK", "text/html; charset=utf-8", "no-cache"}, []string{resp.Status, resp.Header.Get("Content-Type"), resp.Header.Get("Cache-Control")})
	const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	require.Equal(t, policy, resp.Header.Get("Content-Security-Policy"))
	require.Equal(t, "DENY", resp.Header.Get("X-Frame-Options"))
	tag := resp.Header.Get("ETag")
	require.NotEmpty(t, tag)
	require.Equal(t, http.StatusNotModified, apitest.Send(h, http.MethodGet, "/", "", "If-None-Match", tag).StatusCode)
	markup := regexp.MustCompile(`<code>[^<]*</code>`).ReplaceAllString(index, "") // commands to copy may name addresses
	require.NotRegexp(t, `(?i)<style|<script(?:[^>]*[^c])?>[^<]|\son\w+=|\sstyle=|https?://`, markup)
	linked := regexp.MustCompile(`(?:href|src)="(page/[0-9a-f]{16}/[^"]+)"`).FindAllStringSubmatch(index, -1)
	seen := make(map[string]bool)
	for _, m := range linked {
		seen[m[1][strings.LastIndexByte(m[1], '/')+1:]] = true
		resp := apitest.Send(h, http.MethodGet, "/"+m[1], "")
		if resp.StatusCode != http.StatusOK || !strings.Contains(resp.Header.Get("Cache-Control"), "immutable") || resp.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: status %d, %v", m[1], resp.StatusCode, resp.Header)
		}
	}
	// A module that the index does not preload would be found late, one request after the other.
	files := newPage(FrameAncestors{}).files
	for _, name := range withImports(files, "main.js") {
		require.True(t, seen[name], "the index does not name %s", name)
	}
	// Those of other views are loaded with them, and what the menu of the chart makes, with that.
	var later []string
	for _, content := range files {
		for _, m := range regexp.MustCompile(`import\("\./([^"]+)"\)`).FindAllSubmatch(content, -1) {
			later = append(later, string(m[1]))
		}
	}
	for _, view := range []string{"limits", "alerts", "operate"} {
		later = append(later, view+".js", view+".css")
	}
	later = withImports(files, later...)
	for name := range files {
		require.True(t, name == pageIndex || seen[name] || slices.Contains(later, name), "nothing loads %s", name)
	}
	if resp := apitest.Send(h, http.MethodGet, "/page/0123456789abcdef/main.js", ""); resp.StatusCode != http.StatusOK || resp.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("another build's module: status %d, %v", resp.StatusCode, resp.Header)
	}
	for _, target := range []string{"/page/x/nothing.js", "/page/x/index.html", "/page/x", "/page/"} {
		apitest.RequireProblem(t, apitest.Send(h, http.MethodGet, target, ""), http.StatusNotFound)
	}
	require.Equal(t, http.StatusOK, apitest.Send(h, http.MethodHead, "/", "").StatusCode)
}

// QUERY_FRAME_ANCESTORS names who may show the page in a frame. X-Frame-Options says the same if it can.
func TestWhoMayFrameThePage(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][2]string{
		"self":                   {"'self'", "SAMEORIGIN"},
		"https://a.example":      {"https://a.example", ""},
		"self, http://b.test:81": {"'self' http://b.test:81", ""},
	} {
		var frames FrameAncestors
		require.NoError(t, frames.UnmarshalText([]byte(text)))
		mux := http.NewServeMux()
		newPage(frames).register(mux)
		h := apitest.Send(mux, http.MethodGet, "/", "").Header
		_, ancestors, _ := strings.Cut(h.Get("Content-Security-Policy"), "frame-ancestors ")
		require.Equal(t, want, [2]string{ancestors, h.Get("X-Frame-Options")}, text)
	}
	for _, text := range []string{"*", "'self'", "none", "https://a.example/path", "https://a.example;script-src", "a.example", "https://*.example", "self,"} {
		require.Error(t, new(FrameAncestors).UnmarshalText([]byte(text)), text)
	}
}

// The pages of the document lead to nothing that is elsewhere, and each of their files is there. The index
// leads to every operation, and each group has its page.
func TestPagesOfTheDocumentHaveTheirFiles(t *testing.T) {
	t.Parallel()
	h := serveFake(t).handler()
	types := make(map[string]string)
	get := func(target string) string {
		resp := apitest.Send(h, http.MethodGet, target, "")
		const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
		require.Equal(t, http.StatusOK, resp.StatusCode)
		require.Equal(t, policy, resp.Header.Get("Content-Security-Policy"))
		page := string(apitest.ReadBody(t, resp))
		types[target] = "text/html; charset=utf-8"
		for _, m := range regexp.MustCompile(`(?:src|href)="([^"]+\.(js|css))"`).FindAllStringSubmatch(page, -1) {
			types[m[1]] = map[string]string{"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8"}[m[2]]
		}
		require.Contains(t, page, `<a href="/">← Tallyroll</a>`)
		require.Contains(t, page, `href="/openapi.json"`)
		return page
	}
	index := get("/docs")
	require.Contains(t, index, `<tr id="problem-not-found">`)
	require.NotContains(t, index, "<script")
	for _, g := range groups {
		require.Contains(t, get(g.Page()), `data-group="`+g.Name+`"`)
	}
	var doc struct {
		Paths map[string]map[string]struct {
			OperationID string
			Tags        []string
		}
	}
	require.NoError(t, json.Unmarshal(apitest.ReadBody(t, apitest.Send(h, http.MethodGet, "/openapi.json", "")), &doc))
	for path, operations := range doc.Paths {
		for method, op := range operations {
			g := op.Tags[0]
			require.Contains(t, index, fmt.Sprintf(`<a href="/docs/%s#/%s/%s"><code>%s %s</code></a>`, strings.ToLower(g), g, op.OperationID, strings.ToUpper(method), path))
		}
	}
	for target, want := range types {
		resp := apitest.Send(h, http.MethodGet, target, "")
		require.Equal(t, []string{"200 OK", want, "nosniff"}, []string{resp.Status, resp.Header.Get("Content-Type"), resp.Header.Get("X-Content-Type-Options")}, target)
	}
	require.Len(t, types, 1+len(groups)+4)
}

// rgb are linear parts from 0 to 1.
type rgb [3]float64

// colorOf is the value of a variable of the page.
func colorOf(t *testing.T, css, name string) rgb {
	t.Helper()
	m := regexp.MustCompile(`--` + name + `: #([0-9a-f]{6})`).FindStringSubmatch(css)
	require.NotNil(t, m, name)
	n, err := strconv.ParseUint(m[1], 16, 32)
	require.NoError(t, err)
	var out rgb
	for i := range out {
		if c := float64(n>>(16-8*i)&0xff) / 255; c <= 0.04045 {
			out[i] = c / 12.92
		} else {
			out[i] = math.Pow((c+0.055)/1.055, 2.4)
		}
	}
	return out
}

func contrast(a, b rgb) float64 {
	light := func(c rgb) float64 { return 0.2126*c[0] + 0.7152*c[1] + 0.0722*c[2] + 0.05 }
	return max(light(a), light(b)) / min(light(a), light(b))
}

type matrix [3]rgb

func (m matrix) of(c rgb) (out rgb) {
	for i, row := range m {
		out[i] = row[0]*c[0] + row[1]*c[1] + row[2]*c[2]
	}
	return out
}

// seen returns what a reader with this vision sees of a colour that a screen can show.
func (m matrix) seen(c rgb) rgb {
	out := m.of(c)
	for i := range out {
		out[i] = min(max(out[i], 0), 1)
	}
	return out
}

// Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color
// Vision Deficiency" (2009), of the highest severity.
var sights = map[string]matrix{
	"most people": {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}},
	"protanopes":  {{0.152286, 1.052583, -0.204868}, {0.114503, 0.786281, 0.099216}, {-0.003882, -0.048116, 1.051998}},
	"deuteranopes": {
		{0.367322, 0.860646, -0.227968}, {0.280085, 0.672501, 0.047413}, {-0.011820, 0.042940, 0.968881},
	},
}

// difference is the distance in Oklab (B. Ottosson, 2020).
func difference(a, b rgb) float64 {
	cones := matrix{{0.4122214708, 0.5363325363, 0.0514459929}, {0.2119034982, 0.6806995451, 0.1073969566}, {0.0883024619, 0.2817188376, 0.6299787005}}
	lab := matrix{{0.2104542553, 0.7936177850, -0.0040720468}, {1.9779984951, -2.4285922050, 0.4505937099}, {0.0259040371, 0.7827717662, -0.8086757660}}
	place := func(c rgb) rgb {
		c = cones.of(c)
		return lab.of(rgb{math.Cbrt(c[0]), math.Cbrt(c[1]), math.Cbrt(c[2])})
	}
	p, q := place(a), place(b)
	return math.Hypot(math.Hypot(p[0]-q[0], p[1]-q[1]), p[2]-q[2])
}

// Texts stand out from all that can be behind them by 4.5 to 1 (WCAG 2.2, 1.4.3), the edges of controls by 3
// to 1 (1.4.11), in both modes. So do the lines of the chart, and in dark mode, where thin lines look dull,
// by 4.5 to 1. Lines differ from each other for all who see two or three colours by more than Okabe and Ito's
// own do (0.076).
func TestColorsOfThePageStandOut(t *testing.T) {
	t.Parallel()
	light, dark, ok := strings.Cut(string(newPage(FrameAncestors{}).files["style.css"]), "@media screen and (prefers-color-scheme: dark)")
	require.True(t, ok, "style.css has no dark mode")
	for mode, css := range map[string]string{"light": light, "dark": dark} {
		checkContrast := func(least float64, ink string, backs ...string) {
			for _, back := range backs {
				if got := contrast(colorOf(t, css, ink), colorOf(t, css, back)); got < least {
					t.Errorf("%s: %s on %s has a contrast of %.2f, at least %.1f is wanted", mode, ink, back, got, least)
				}
			}
		}
		checkContrast(4.5, "text", "back", "card", "raised", "wash", "checked")
		checkContrast(4.5, "muted", "back", "card", "raised")
		checkContrast(4.5, "accent", "back", "card")
		checkContrast(4.5, "on-accent", "accent")
		checkContrast(4.5, "green", "card")
		checkContrast(4.5, "amber", "card", "amber-wash")
		checkContrast(4.5, "red", "card", "red-wash")
		checkContrast(3, "strong", "card", "back")
		var lines [7]rgb // as many as view.js lets be drawn
		for i := range lines {
			name := fmt.Sprintf("line%d", i)
			lines[i] = colorOf(t, css, name)
			checkContrast(map[string]float64{"light": 3, "dark": 4.5}[mode], name, "card")
		}
		for sight, m := range sights {
			for i := range lines {
				for j := range i {
					if d := difference(m.seen(lines[i]), m.seen(lines[j])); d < 0.08 {
						t.Errorf("%s: lines %d and %d differ by %.3f for %s", mode, i, j, d, sight)
					}
				}
			}
		}
	}
}
