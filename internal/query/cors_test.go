package query

import (
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/web"
	"tallyroll/tests/asking"
)

func TestCORS(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, setting, origin, allowed string
	}{
		{"off", "", "https://a.example", ""},
		{"one of the origins", "https://a.example, http://localhost:3000", "http://localhost:3000", "http://localhost:3000"},
		{"another origin", "https://a.example", "https://b.example", ""},
		{"another scheme", "https://a.example", "http://a.example", ""},
		{"a longer name", "https://a.example", "https://a.example.evil", ""},
		{"no origin", "https://a.example", "", ""},
		{"any", "*", "https://b.example", "*"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, _ := onFake(t)
			if c.setting != "" {
				require.NoError(t, s.origins.UnmarshalText([]byte(c.setting)))
			}
			useTokens(t, s, "secret")
			h := s.handler()
			resp := asking.Ask(h, http.MethodGet, goodTarget, "", "Origin", c.origin, "Authorization", "Bearer secret")
			if got := resp.Header.Get("Access-Control-Allow-Origin"); resp.StatusCode != http.StatusOK || got != c.allowed {
				t.Errorf("status %d, allowed %q, want %q", resp.StatusCode, got, c.allowed)
			}
			// Scripts may read the headers that answers have, and no others.
			if got := resp.Header.Get("Access-Control-Expose-Headers"); (got == "ETag, RateLimit, RateLimit-Policy, Retry-After") != (c.allowed != "") {
				t.Errorf("exposed %q", got)
			}
			if exact := c.setting != "" && c.setting != "*"; exact != slices.Contains(resp.Header.Values("Vary"), "Origin") {
				t.Errorf("Vary %q", resp.Header.Values("Vary"))
			}
			// A page must be able to read that its token is wrong.
			resp = asking.Ask(h, http.MethodGet, goodTarget, "", "Origin", c.origin)
			if got := resp.Header.Get("Access-Control-Allow-Origin"); resp.StatusCode != http.StatusUnauthorized || got != c.allowed {
				t.Errorf("without a token: status %d, allowed %q, want %q", resp.StatusCode, got, c.allowed)
			}
			resp = asking.Ask(h, http.MethodOptions, goodTarget, "", "Origin", c.origin, "Access-Control-Request-Method", "POST")
			if c.allowed == "" {
				if resp.StatusCode == http.StatusNoContent {
					t.Errorf("the preflight is answered: %v", resp.Header)
				}
				return
			}
			if resp.StatusCode != http.StatusNoContent || resp.Header.Get("Access-Control-Allow-Headers") == "" || resp.Header.Get("Access-Control-Allow-Methods") != "GET, HEAD, POST, DELETE" {
				t.Errorf("preflight: status %d, %v", resp.StatusCode, resp.Header)
			}
		})
	}
	for _, bad := range []string{"", "a.example", "https://", "https://a.example/", "https://a.example/path", "https://a.example,*", "https://u@a.example?x"} {
		if err := new(web.Origins).UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("origins %q were taken", bad)
		}
	}
}
