package access

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/boot"
)

// A request has the token that it carries. A file that is read again has others, and ends those that are gone from it or
// are not as they were.
func TestFind(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tokens.yml")
	write := func(entries ...string) {
		t.Helper()
		text := "tokens:\n"
		for _, entry := range entries {
			name, fields, _ := strings.Cut(entry, " ")
			text += fmt.Sprintf("  - {name: %s, sha256: %x, may: [read], %s}\n", name, sha256.Sum256([]byte("secret-"+name)), fields)
		}
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	write("kept", "gone", "changed", "old until: 2020-01-01", "both prefixes: [a.]")
	settings := Settings{Program: "TEST", File: file}
	require.NoError(t, settings.Plain.UnmarshalText([]byte("plain,secret-both")))
	files := boot.NewFiles(zerolog.Nop(), func(string) func(error) { return func(error) {} })
	tokens, err := New(settings, files)
	if err != nil || !tokens.Required() || tokens.Count() != 7 || tokens.Settings() != "TEST_TOKENS or TEST_TOKENS_FILE" {
		t.Fatalf("%d tokens of %s, %v", tokens.Count(), tokens.Settings(), err)
	}
	find := func(header string) (*Token, string) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Authorization", header)
		token, p := tokens.Find(r)
		if p == nil {
			return token, ""
		}
		w := httptest.NewRecorder()
		p.Write(w)
		if token != nil || w.Code != http.StatusUnauthorized || w.Header().Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("%q: %+v, %d %v", header, token, w.Code, w.Header())
		}
		return nil, p.Detail
	}
	for header, want := range map[string]string{
		"Bearer secret-kept": "kept", "bearer secret-kept": "kept", "Bearer  secret-kept ": "kept", "Bearer secret-both": "both", "Bearer plain": "a116c9ed",
		"": "", "Bearer": "", "Bearer ": "", "Bearer secret-kep": "", "Bearer secret-kept2": "", "Basic secret-kept": "", "secret-kept": "", "Bearer SECRET-KEPT": "", "Bearer secret-old": "",
	} {
		if token, why := find(header); token.Name() != want || (why == "") != (want != "") {
			t.Errorf("%q is %q, want %q (%s)", header, token.Name(), want, why)
		}
	}
	if _, why := find("Bearer secret-old"); !strings.Contains(why, "the token old has ended at 2020-01-01T00:00:00Z") {
		t.Error(why)
	}

	before := make(map[string]*Token)
	for _, name := range []string{"kept", "gone", "changed"} {
		before[name], _ = find("Bearer secret-" + name)
	}
	write("kept", "changed prefixes: [a.]", "new")
	files.Reload()
	for name, stays := range map[string]bool{"kept": true, "gone": false, "changed": false} {
		now, _ := find("Bearer secret-" + name)
		if ended := before[name].ended.Err() != nil; ended == stays || (now == before[name]) != stays {
			t.Errorf("%s: ended %v, and the token is %+v", name, ended, now)
		}
	}
	if token, why := find("Bearer secret-new"); token.Name() != "new" {
		t.Errorf("the new token is refused: %s", why)
	}
	os.Remove(file)
	files.Reload()
	if token, why := find("Bearer secret-new"); token.Name() != "new" {
		t.Errorf("without the file: %s", why)
	}
	if none, err := New(Settings{Program: "TEST"}, files); err != nil || none.Required() {
		t.Errorf("without settings: %+v, %v", none, err)
	}
}
