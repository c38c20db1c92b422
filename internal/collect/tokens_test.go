package collect

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"tallyroll/internal/hit"
)

// tokensOf reads a file with this text and mode.
func tokensOf(t *testing.T, text string, mode os.FileMode) (set *tokens, path string, log *bytes.Buffer) {
	t.Helper()
	path, log = filepath.Join(t.TempDir(), "tokens.yml"), new(bytes.Buffer)
	writeFile(t, path, text, mode)
	set, err := newTokens(path, zerolog.New(log))
	if err != nil {
		t.Fatal(err)
	}
	return set, path, log
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
	r := httptest.NewRequest(http.MethodPost, "/v1/hits", nil)
	if token != "" {
		r.Header.Set("Authorization", token)
	}
	return r
}

func TestCaller(t *testing.T) {
	set, path, log := tokensOf(t, "tokens: [{name: shop, token: s3cret, prefix: shop.}, {name: all, token: other}]", 0o600)
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
	set.reload()
	if got, _ := s.caller(bearer("Bearer n3w")); got.name != "new" {
		t.Errorf("after a reload, the new token is %+v", got)
	}
	if _, p := s.caller(bearer("Bearer s3cret")); p == nil {
		t.Error("after a reload, the old token still opens")
	}
	writeFile(t, path, "tokens:\n  - {name: new}", 0o600)
	set.reload()
	if got, _ := s.caller(bearer("Bearer n3w")); got.name != "new" || !strings.Contains(log.String(), "they stay as they were") || !strings.Contains(log.String(), "line 2: token: it is missing") {
		t.Errorf("after a bad file, the token is %+v; the log: %s", got, log)
	}
}

// A page of another site must not count through a browser that reaches the service.
func TestCallerIsNoForeignPage(t *testing.T) {
	s := &service{tokens: &tokens{}}
	for _, c := range []struct {
		name, header, value string
		allowed             bool
	}{
		{"no browser", "", "", true}, {"the same origin", "Origin", "http://example.com", true}, {"a typed address", "Sec-Fetch-Site", "none", true},
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

func TestReadableTokensAreWarnedOf(t *testing.T) {
	hashed := fmt.Sprintf("tokens: [{name: a, token_sha256: %x}]", sha256.Sum256([]byte("x")))
	for _, c := range []struct {
		text   string
		mode   os.FileMode
		warned bool
	}{
		{"tokens: [{name: a, token: hunter2}]", 0o604, true}, {"tokens: [{name: a, token: hunter2}]", 0o640, false}, {hashed, 0o644, false},
	} {
		_, _, log := tokensOf(t, c.text, c.mode)
		if strings.Contains(log.String(), "chmod o-r") != c.warned || strings.Contains(log.String(), "hunter2") {
			t.Errorf("mode %v: %s", c.mode, log)
		}
	}
}

func TestTokensFileIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.yml")
	writeFile(t, path, "tokens: [{name: a, token: x}]\n"+strings.Repeat("#", maxTokensFile), 0o600)
	for name, file := range map[string]string{"too large": path, "missing": path + ".no", "a directory": filepath.Dir(path)} {
		_, err := newTokens(file, zerolog.Nop())
		if err == nil || !strings.HasPrefix(err.Error(), "COLLECT_TOKENS_FILE: ") || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
