package query

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/platform/setting"
)

// NATS is where it is for all programs, unless NATS_URL is there and empty.
func TestNATSIsAskedUnlessItsURLIsEmpty(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		url          string
		set          bool
		asks, chosen bool
		at           string
	}{
		{"", false, true, false, "127.0.0.1:4222"},
		{"", true, false, false, ""},
		{"nats.example:4333", true, true, true, "nats.example:4333"},
	} {
		var env []string
		if c.set {
			env = []string{"NATS_URL=" + c.url}
		}
		var s Settings
		require.NoError(t, setting.Parse(&s, env...))
		if at := s.NATS; s.asksNATS() != c.asks || c.asks && (at.Chosen() != c.chosen || at.URL.String() != c.at) {
			t.Errorf("%+v: asks %t, chosen %t, at %s", c, s.asksNATS(), at.Chosen(), at.URL)
		}
	}
}

// A setting that is wrong is named, and secrets are not shown.
func TestWrongSettingsAreNamed(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "none.pem")
	require.NoError(t, os.WriteFile(file, []byte("no certificate"), 0o600))
	for _, env := range [][]string{nil, {"QUERY_TOKENS=a,b"}, {"QUERY_TAKE=any", "QUERY_TAKE_TIMEOUT=5s", "QUERY_TRUSTED_PROXIES=10.0.0.0/8,::1"}} {
		var s Settings
		require.NoError(t, setting.Parse(&s, env...), env)
		require.Equal(t, 1000, s.MaxKeys)
	}
	for _, wrong := range []string{
		"QUERY_TOKENS=a,,b", "QUERY_TOKENS= ", "QUERY_TOKENS=a b", "QUERY_TOKENS=ä", "QUERY_ADDR=localhost", "QUERY_METRICS_ADDR=localhost",
		"QUERY_MAX_EXPORTS=0", "QUERY_MAX_PROBE=0", "QUERY_MAX_KEYS=0", "QUERY_MAX_KEYS=1000000", "QUERY_MAX_CELLS=0", "QUERY_MAX_POINTS=-1", "QUERY_LIVE_CLIENTS=0", "QUERY_LIVE_QUESTIONS=x",
		"QUERY_CORS_ORIGINS=https://a.example/x", "QUERY_FRAME_ANCESTORS=*", "QUERY_TAKE=yes", "QUERY_TAKE_TIMEOUT=999us", "QUERY_TAKE_TIMEOUT=5001ms", "QUERY_TIMEOUT=99ms", "QUERY_TIMEOUT=61s",
		"QUERY_TRUSTED_PROXIES=proxy.example", "QUERY_ERASE=yes", "TALLYROLL_NAMESPACE=a b", "TALLYROLL_NAMESPACE=a..b",
		"QUERY_TLS_CERT=" + file, "QUERY_TLS_KEY=" + file, "QUERY_TLS_CERT=" + file + " QUERY_TLS_KEY=" + file,
	} {
		env := []string{wrong}
		if first, second, two := strings.Cut(wrong, " QUERY"); two {
			env = []string{first, "QUERY" + second}
		}
		key, _, _ := strings.Cut(wrong, "=")
		var refusal *setting.Error
		require.ErrorAs(t, setting.Parse(new(Settings), env...), &refusal, wrong)
		require.Equal(t, key, refusal.Key, wrong)
		require.False(t, key == "QUERY_TOKENS" && refusal.Value != "", "the error shows the secret")
	}
}
