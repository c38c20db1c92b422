package collect

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"tallyroll/internal/boot"
	"tallyroll/internal/hit"
	"tallyroll/internal/web"
)

// tokensOf reads a file with this text and mode.
func tokensOf(t *testing.T, text string, mode os.FileMode) (set *tokens, path string, files *boot.Files, log *bytes.Buffer) {
	t.Helper()
	path, log = filepath.Join(t.TempDir(), "tokens.yml"), new(bytes.Buffer)
	writeFile(t, path, text, mode)
	files = boot.NewFiles(zerolog.New(log), func(string) func(error) { return func(error) {} })
	set, err := newTokens(path, files)
	if err != nil {
		t.Fatal(err)
	}
	return set, path, files, log
}

func writeFile(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil { // whatever the umask
		t.Fatal(err)
	}
}

func bearer(token string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "http://collect.test/v1/hits", nil)
	if token != "" {
		r.Header.Set("Authorization", token)
	}
	return r
}

func TestCaller(t *testing.T) {
	t.Parallel()
	set, path, files, log := tokensOf(t, "tokens: [{name: shop, token: s3cret, prefix: shop.}, {name: all, token: other}]", 0o600)
	s := &service{tokens: set}
	for header, want := range map[string]string{
		"Bearer s3cret": "shop", "bearer s3cret": "shop", "Bearer other": "all",
		"": "", "Bearer": "", "Bearer s3cre": "", "Bearer s3cret2": "", "Basic s3cret": "", "s3cret": "", "Bearer S3CRET": "",
	} {
		got, p := s.caller(bearer(header))
		if got.name != want || (p == nil) != (want != "") {
			t.Errorf("%q is %+v, %v; want %q", header, got, p, want)
		}
		if p == nil {
			continue
		}
		w := httptest.NewRecorder()
		p.Write(w)
		if w.Code != http.StatusUnauthorized || w.Header().Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("%q: %d %v", header, w.Code, w.Header())
		}
	}
	shop, _ := s.caller(bearer("Bearer s3cret"))
	for key, ok := range map[string]bool{"shop.a": true, "shop.": true, "shop": false, "blog": false, "Shop.a": false} {
		p := outside([]hit.Hit{{Counter: []byte(key)}}, shop.prefix)
		if (p == nil) != ok || p != nil && (p.Status != http.StatusForbidden || !strings.Contains(p.Detail, key) || !strings.Contains(p.Detail, `"shop."`)) {
			t.Errorf("%q: %v", key, p)
		}
	}

	writeFile(t, path, "tokens: [{name: new, token: n3w}]", 0o600)
	files.Reload()
	if got, _ := s.caller(bearer("Bearer n3w")); got.name != "new" {
		t.Errorf("after a reload, the new token is %+v", got)
	}
	if _, p := s.caller(bearer("Bearer s3cret")); p == nil {
		t.Error("after a reload, the old token still opens")
	}
	writeFile(t, path, "tokens:\n  - {name: new}", 0o600)
	files.Reload()
	if got, _ := s.caller(bearer("Bearer n3w")); got.name != "new" || !strings.Contains(log.String(), "tokens not reloaded") || !strings.Contains(log.String(), "line 2: token: it is missing") {
		t.Errorf("after a bad file, the token is %+v; the log: %s", got, log)
	}
}

// A page of another site must not count through a browser that reaches the service.
func TestCallerIsNoForeignPage(t *testing.T) {
	t.Parallel()
	s := &service{tokens: &tokens{}}
	for _, c := range []struct {
		name, header, value string
		allowed             bool
	}{
		{"no browser", "", "", true}, {"the same origin", "Origin", "http://collect.test", true}, {"a typed address", "Sec-Fetch-Site", "none", true},
		{"another origin", "Origin", "http://evil.example", false}, {"another site", "Sec-Fetch-Site", "cross-site", false}, {"no origin", "Origin", "null", false},
	} {
		r := bearer("")
		if c.header != "" {
			r.Header.Set(c.header, c.value)
		}
		_, p := s.caller(r)
		if (p == nil) != c.allowed || p != nil && p.Status != http.StatusForbidden {
			t.Errorf("%s: %v", c.name, p)
		}
	}
}

// A page that has given its own name the address of the service (DNS rebinding) is of the same origin, and counts nothing
// all the same. Tokens and certificates do without the check.
func TestCallerIsNoReboundPage(t *testing.T) {
	t.Parallel()
	s := offline(t, append(pageVariables, "COLLECT_HOSTS=collect.example.com")...)
	h := s.handler()
	ask := func(method, host, path string, headers ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, "http://"+host+path, strings.NewReader(`{"key":"a"}`))
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	for _, headers := range [][]string{nil, {"Origin", "http://evil.example:8081", "Sec-Fetch-Site", "same-origin"}, {"ce-specversion", "1.0"}} {
		w := ask("POST", "evil.example:8081", hitsPath, headers...)
		if w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "COLLECT_HOSTS") || !strings.Contains(w.Body.String(), web.UnknownHost.Type()) {
			t.Errorf("%v: %d %s", headers, w.Code, w.Body)
		}
	}
	if w := ask("OPTIONS", "evil.example:8081", hitsPath, requestOrigin, "a"); w.Code != http.StatusForbidden || w.Header().Get(allowedOrigin) != "" {
		t.Errorf("a handshake: %d %v", w.Code, w.Header())
	}
	for _, host := range []string{"localhost:8081", "127.0.0.1:8081", "collect", "collect.shop.svc", "Collect.example.com"} {
		if w := ask("POST", host, hitsPath); w.Code != http.StatusServiceUnavailable { // there is no NATS
			t.Errorf("%s: %d %s", host, w.Code, w.Body)
		}
	}
	// Pages of named origins count at any name, and status is for all.
	if w := ask("POST", "counts.example.com", beaconPath, "Origin", "https://shop.example.com"); w.Code != http.StatusServiceUnavailable {
		t.Errorf("a beacon: %d %s", w.Code, w.Body)
	}
	for path, status := range map[string]int{"/healthz": 200, "/metrics": 200, "/readyz": 503, "/docs": 200} {
		if w := ask("GET", "evil.example", path); w.Code != status {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	s.tokens, _, _, _ = tokensOf(t, "tokens: [{name: a, token: secret}]", 0o600)
	for token, status := range map[string]int{"Bearer secret": 503, "": 401} {
		if w := ask("POST", "any.example.com", hitsPath, "Authorization", token); w.Code != status {
			t.Errorf("with tokens, %q: %d %s", token, w.Code, w.Body)
		}
	}
}
