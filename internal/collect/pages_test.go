package collect

import (
	"bytes"
	"fmt"
	"image"
	"image/gif"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/boot"
	"tallyroll/internal/hit"
	"tallyroll/tests/cases"
)

var pageVariables = []string{"COLLECT_ORIGINS=https://shop.example.com,http://localhost:3000", "COLLECT_BEACON_PREFIX=web.", "COLLECT_BEACON_MAX_HITS=3", "COLLECT_BEACON_MAX_N=5"}

// offline is a service that has no connection to NATS yet.
func offline(t *testing.T, variables ...string) *service {
	t.Helper()
	var settings Settings
	require.NoError(t, boot.Parse(&settings, variables...))
	s, err := newService(settings, zerolog.Nop())
	require.NoError(t, err)
	return s
}

func pageSettings(t *testing.T) PageSettings {
	t.Helper()
	var s struct{ Pages PageSettings }
	err := boot.Parse(&s, pageVariables...)
	require.NoError(t, err)
	return s.Pages
}

func TestPixelIsOneTransparentDot(t *testing.T) {
	t.Parallel()
	require.Len(t, pixel, 43)
	img, err := gif.Decode(strings.NewReader(pixel))
	require.NoError(t, err)
	require.Equal(t, image.Rect(0, 0, 1, 1), img.Bounds())
	_, _, _, alpha := img.At(0, 0).RGBA()
	require.Zero(t, alpha)
}

func TestPageSettings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ set, names string }{
		{"COLLECT_ORIGINS=*", "each named"}, {"COLLECT_ORIGINS=https://a.example/path", "without a path"}, {"COLLECT_ORIGINS=null", "without a path"},
		{"COLLECT_ORIGINS=https://*.example", "* within"}, {"COLLECT_BEACON_PREFIX=" + strings.Repeat("a", maxPrefix+1), "up to 128 bytes"},
		{"COLLECT_BEACON_PREFIX=a\tb", "control"}, {"COLLECT_BEACON_MAX_N=0", "from 1 to"}, {"COLLECT_BEACON_MAX_HITS=0", "COLLECT_BEACON_MAX_HITS"},
	} {
		key, _, _ := strings.Cut(c.set, "=")
		var s struct{ Pages PageSettings }
		err := boot.Parse(&s, c.set)
		if err == nil || !strings.HasPrefix(err.Error(), key) || !strings.Contains(err.Error(), c.names) {
			t.Errorf("%s: %v", c.set, err)
		}
	}
}

// text writes hits as a test compares them.
func text(hits ...hit.Hit) string {
	var out []string
	for _, h := range hits {
		out = append(out, fmt.Sprintf("%s×%d", h.Counter, h.N))
		if h.At != hit.NoTime {
			out = append(out, "with a time")
		}
		if h.Unique != nil {
			out = append(out, "of "+string(h.Unique))
		}
	}
	return strings.Join(out, " ")
}

func TestHitsOfPages(t *testing.T) {
	t.Parallel()
	s := pageSettings(t)
	cases.Check(t, "pages", func(t *testing.T, section, given string) string {
		if section != "beacon" {
			h, param, err := gifHit(given)
			if err != nil {
				return fmt.Sprintf("%s refused: %v", param, err)
			}
			return text(h)
		}
		hits, p := s.beaconHits(hit.NewParser(), []byte(given))
		if p != nil {
			require.Empty(t, hits)
			return fmt.Sprintf("%d %s", p.Status, p.Detail)
		}
		return text(hits...)
	})
}

func TestCheckPage(t *testing.T) {
	t.Parallel()
	s := &service{settings: Settings{Pages: pageSettings(t)}}
	for _, c := range []struct {
		method, origin, referer string
		allowed                 bool
	}{
		{"POST", "https://shop.example.com", "", true},
		{"POST", "http://localhost:3000", "https://evil.example/", true},
		{"POST", "https://evil.example", "https://shop.example.com/", false},
		{"POST", "https://shop.example.com.evil.example", "", false},
		{"POST", "http://shop.example.com", "", false},
		{"POST", "null", "", false},
		{"POST", "", "https://shop.example.com/", false},
		{"POST", "", "", false},
		{"GET", "https://shop.example.com", "", true},
		{"GET", "", "https://shop.example.com/", true},
		{"GET", "", "https://shop.example.com/a/b?c", true},
		{"GET", "", "https://evil.example/?https://shop.example.com/", false},
		{"GET", "", "https://shop.example.com@evil.example/", false},
		{"GET", "null", "https://shop.example.com/", false},
		{"GET", "", "", false},
		{"GET", "", "shop.example.com", false},
	} {
		r := httptest.NewRequest(c.method, gifPath, nil)
		for name, value := range map[string]string{"Origin": c.origin, "Referer": c.referer} {
			if value != "" {
				r.Header.Set(name, value)
			}
		}
		p := s.checkPage(r)
		if (p == nil) != c.allowed || p != nil && p.Status != http.StatusForbidden {
			t.Errorf("%+v: %v", c, p)
		}
	}
}

// What is refused before JetStream is asked.
func TestPageRequestsRefused(t *testing.T) {
	t.Parallel()
	s := offline(t, pageVariables...)
	h := s.handler()
	const good = "https://shop.example.com"
	for _, c := range []struct {
		name, method, target, body, kind, encoding string
		status                                     int
		says                                       string
	}{
		{"a form", "POST", beaconPath, "key=a", "application/x-www-form-urlencoded", "", 415, "allowed are text/plain, application/json and none"},
		{"packed", "POST", beaconPath, "", "text/plain", "gzip", 415, "is not packed"},
		{"large", "POST", beaconPath, strings.Repeat(" ", maxBeacon+1), "text/plain", "", 413, "65536 bytes"},
		{"bad", "POST", beaconPath, "x", "text/plain;charset=UTF-8", "", 400, "a JSON array of objects"},
		{"no key", "GET", gifPath, "", "", "", 400, "key"},
		{"n", "GET", gifPath + "?key=a&n=6", "", "", "", 400, "from 1 to 5"},
	} {
		r := httptest.NewRequest(c.method, c.target, bytes.NewBufferString(c.body))
		r.Header.Set("Origin", good)
		for name, value := range map[string]string{"Content-Type": c.kind, "Content-Encoding": c.encoding} {
			if value != "" {
				r.Header.Set(name, value)
			}
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.says) || w.Header().Get("Access-Control-Allow-Origin") != good || w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %d %s %v", c.name, w.Code, w.Body, w.Header())
		}
	}
}

func TestPreflight(t *testing.T) {
	t.Parallel()
	handler := offline(t, pageVariables...).handler()
	for origin, status := range map[string]int{"https://shop.example.com": 204, "https://evil.example": 403, "": 403} {
		r := httptest.NewRequest(http.MethodOptions, beaconPath, nil)
		r.Header.Set("Access-Control-Request-Method", "POST")
		if origin != "" {
			r.Header.Set("Origin", origin)
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		h := w.Header()
		require.EqualValues(t, status, w.Code, "%v %v", origin, w.Body)
		if allowed := status == 204; allowed != (h.Get("Access-Control-Allow-Origin") == origin && h.Get("Access-Control-Allow-Headers") == "Content-Type" && h.Get("Access-Control-Allow-Credentials") == "true") {
			t.Errorf("%q: %v", origin, h)
		}
	}
}

func TestPagesAreOff(t *testing.T) {
	t.Parallel()
	for _, set := range [][]string{nil, {"COLLECT_ORIGINS=https://shop.example.com"}, {"COLLECT_BEACON_PREFIX=web."}} {
		h := offline(t, set...).handler()
		for method, path := range map[string]string{"POST": beaconPath, "GET": gifPath, "OPTIONS": beaconPath} {
			r := httptest.NewRequest(method, path, nil)
			r.Header.Set("Origin", "https://shop.example.com")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != 404 || !strings.Contains(w.Body.String(), "COLLECT_ORIGINS") || !strings.Contains(w.Body.String(), "COLLECT_BEACON_PREFIX") {
				t.Errorf("%v: %s %s: %d %s", set, method, path, w.Code, w.Body)
			}
		}
	}
}
