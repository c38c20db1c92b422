package access

import (
	"context"
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

	"tallyroll/internal/setting"
	"tallyroll/internal/web"
)

// startToken returns a token with all rights about names that begin with one of these.
func startToken(prefixes ...string) *Token {
	return grant{name: "shop", may: allRights, prefixes: prefixes}.start()
}

// writeTokens writes a file of tokens that may read. An entry is a name, which the secret-… is made of, and
// fields.
func writeTokens(t *testing.T, file string, entries ...string) {
	t.Helper()
	text := "tokens:\n"
	for _, entry := range entries {
		name, fields, _ := strings.Cut(entry, " ")
		text += fmt.Sprintf("  - {name: %s, sha256: %x, may: [read], %s}\n", name, sha256.Sum256([]byte("secret-"+name)), fields)
	}
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
}

func findToken(t *testing.T, tokens *Tokens, header string) (*Token, string) {
	t.Helper()
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

// A request has the token that it carries. A file that is read again has others, and ends those that are gone
// from it or are not as they were, with all that lasts.
func TestRequestHasTheTokenThatItCarries(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tokens.yml")
	writeTokens(t, file, "kept", "gone", "changed", "old until: 2020-01-01", "later until: 2999-01-01T12:00:00+02:00", "both prefixes: [a.]")
	settings := TokenSettings{Program: "TEST", File: file}
	require.NoError(t, settings.Plain.UnmarshalText([]byte("plain,secret-both")))
	files := setting.NewFiles(zerolog.Nop(), func(string) func(error) { return func(error) {} })
	tokens, err := New(settings, files)
	require.NoError(t, err)
	if !tokens.Required() || tokens.Count() != 8 || tokens.Settings() != "TEST_TOKENS or TEST_TOKENS_FILE" {
		t.Fatalf("%d tokens of %s", tokens.Count(), tokens.Settings())
	}
	for header, want := range map[string]string{
		"Bearer secret-kept": "kept", "bearer secret-kept": "kept", "Bearer  secret-kept ": "kept", "Bearer secret-both": "both", "Bearer plain": "a116c9ed", "Bearer secret-later": "later",
		"": "", "Bearer": "", "Bearer ": "", "Bearer secret-kep": "", "Bearer secret-kept2": "", "Basic secret-kept": "", "secret-kept": "", "Bearer SECRET-KEPT": "", "Bearer secret-old": "",
	} {
		if token, why := findToken(t, tokens, header); token.Name() != want || (why == "") != (want != "") {
			t.Errorf("%q is %q, want %q (%s)", header, token.Name(), want, why)
		}
	}
	_, why := findToken(t, tokens, "Bearer secret-old")
	require.Contains(t, why, "the token old ended at 2020-01-01T00:00:00Z")

	before, lasting := make(map[string]*Token), make(map[string]context.Context)
	for _, name := range []string{"kept", "gone", "changed"} {
		token, _ := findToken(t, tokens, "Bearer secret-"+name)
		bound, cancel := token.Bind(t.Context())
		defer cancel()
		before[name], lasting[name] = token, bound
	}
	writeTokens(t, file, "kept", "changed prefixes: [a.]", "new")
	files.Reload()
	<-lasting["gone"].Done()
	<-lasting["changed"].Done()
	require.NoError(t, lasting["kept"].Err(), "what a token that is as it was asked for")
	for name, stays := range map[string]bool{"kept": true, "gone": false, "changed": false} {
		if now, _ := findToken(t, tokens, "Bearer secret-"+name); (now == before[name]) != stays {
			t.Errorf("%s: the token is %+v", name, now)
		}
	}
	require.NoError(t, os.Remove(file))
	files.Reload()
	token, why := findToken(t, tokens, "Bearer secret-new")
	require.Equal(t, "new", token.Name(), "without the file, too: "+why)
	none, err := New(TokenSettings{Program: "TEST"}, files)
	if err != nil || none.Required() {
		t.Errorf("without settings: %+v, %v", none, err)
	}
}

// A token needs the very right; without tokens, everybody has all of them, about all counters, for ever.
func TestTokenHasItsOwnRightsOnly(t *testing.T) {
	t.Parallel()
	for _, has := range allRights {
		token := grant{name: "shop", may: []Right{has}}.start()
		for _, needed := range allRights {
			err := token.Require(needed, "GET /v1/x")
			if needed == has {
				require.NoError(t, err)
				continue
			}
			p := web.ProblemOf(err)
			require.Equal(t, web.TokenLacksRight.Type(), p.Type)
			require.Equal(t, fmt.Sprintf("the token shop lacks the right %s, which GET /v1/x needs: it has %s", needed, has), p.Detail)
		}
		require.NoError(t, token.CheckKey("any"))
	}
	var none *Token
	require.Equal(t, allRights, none.Rights())
	if none.HasPrefixes() || none.Name() != "" || !none.Until().IsZero() || none.Require(Admin, "all") != nil || none.CheckPrefix("") != nil {
		t.Errorf("no token: %+v", none)
	}
	bound, cancel := none.Bind(t.Context())
	cancel()
	require.Error(t, bound.Err())

	var many []string
	for i := range 7 {
		many = append(many, fmt.Sprintf("%d.", i))
	}
	require.ErrorContains(t, startToken(many...).CheckKey("x"), `"4." or 2 others`)
	require.NoError(t, startToken(many...).CheckKey(""), "no counter has the empty name")
	require.Error(t, startToken(many...).CheckPrefix(""))
}
