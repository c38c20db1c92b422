package collect

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/access"
	"tallyroll/internal/web"
)

// tokensOf are a file of tokens, whose secrets are their names.
func tokensOf(t *testing.T, entries ...string) (path string) {
	t.Helper()
	text := "tokens:\n"
	for _, entry := range entries {
		name, fields, _ := strings.Cut(entry, " ")
		text += fmt.Sprintf("  - {name: %s, sha256: %x, %s}\n", name, sha256.Sum256([]byte(name)), fields)
	}
	path = filepath.Join(t.TempDir(), "tokens.yml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// A page of another site must not count through a browser that reaches the service.
func TestCallerIsNoForeignPage(t *testing.T) {
	t.Parallel()
	s := &service{tokens: new(access.Tokens)}
	for _, c := range []struct {
		name, header, value string
		allowed             bool
	}{
		{"no browser", "", "", true}, {"the same origin", "Origin", "http://collect.test", true}, {"a typed address", "Sec-Fetch-Site", "none", true},
		{"another origin", "Origin", "http://evil.example", false}, {"another site", "Sec-Fetch-Site", "cross-site", false}, {"no origin", "Origin", "null", false},
	} {
		r := httptest.NewRequest(http.MethodPost, "http://collect.test/v1/hits", nil)
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
	h = offline(t, "COLLECT_TOKENS_FILE="+tokensOf(t, "secret may: [count]")).handler()
	for token, status := range map[string]int{"Bearer secret": 503, "": 401} {
		if w := ask("POST", "any.example.com", hitsPath, "Authorization", token); w.Code != status {
			t.Errorf("with tokens, %q: %d %s", token, w.Code, w.Body)
		}
	}
}
