package query

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/boot"
)

// NATS is where it is for all programs, unless NATS_URL is there and empty.
func TestSettingsOfNATS(t *testing.T) {
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
		require.NoError(t, boot.Parse(&s, env...))
		if at := s.natsAt(); s.asksNATS() != c.asks || c.asks && (at.Chosen() != c.chosen || at.URL.String() != c.at) {
			t.Errorf("%+v: asks %t, chosen %t, at %s", c, s.asksNATS(), at.Chosen(), at.URL)
		}
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	nothing := filepath.Join(t.TempDir(), "none.pem")
	require.NoError(t, os.WriteFile(nothing, []byte("no certificate"), 0o600))
	for _, c := range []struct {
		name string
		env  map[string]string
		key  string // of the setting that is refused
	}{
		{"defaults", nil, ""},
		{"tokens", map[string]string{"QUERY_TOKENS": "a,b"}, ""},
		{"an empty token", map[string]string{"QUERY_TOKENS": "a,,b"}, "QUERY_TOKENS"},
		{"blank tokens", map[string]string{"QUERY_TOKENS": " "}, "QUERY_TOKENS"},
		{"a token of two words", map[string]string{"QUERY_TOKENS": "a b"}, "QUERY_TOKENS"},
		{"a token that is not ASCII", map[string]string{"QUERY_TOKENS": "ä"}, "QUERY_TOKENS"},
		{"no port", map[string]string{"QUERY_ADDR": "localhost"}, "QUERY_ADDR"},
		{"no port for metrics", map[string]string{"QUERY_METRICS_ADDR": "localhost"}, "QUERY_METRICS_ADDR"},
		{"no exports", map[string]string{"QUERY_MAX_EXPORTS": "0"}, "QUERY_MAX_EXPORTS"},
		{"no totals for a probe", map[string]string{"QUERY_MAX_PROBE": "0"}, "QUERY_MAX_PROBE"},
		{"no counters", map[string]string{"QUERY_MAX_KEYS": "0"}, "QUERY_MAX_KEYS"},
		{"too many counters", map[string]string{"QUERY_MAX_KEYS": "1000000"}, "QUERY_MAX_KEYS"},
		{"no cells", map[string]string{"QUERY_MAX_CELLS": "0"}, "QUERY_MAX_CELLS"},
		{"no points", map[string]string{"QUERY_MAX_POINTS": "-1"}, "QUERY_MAX_POINTS"},
		{"no live clients", map[string]string{"QUERY_LIVE_CLIENTS": "0"}, "QUERY_LIVE_CLIENTS"},
		{"no live questions", map[string]string{"QUERY_LIVE_QUESTIONS": "x"}, "QUERY_LIVE_QUESTIONS"},
		{"an origin with a path", map[string]string{"QUERY_CORS_ORIGINS": "https://a.example/x"}, "QUERY_CORS_ORIGINS"},
		{"takes of any kind", map[string]string{"QUERY_TAKE": "any", "QUERY_TAKE_TIMEOUT": "5s", "QUERY_TRUSTED_PROXIES": "10.0.0.0/8,::1"}, ""},
		{"takes of no kind", map[string]string{"QUERY_TAKE": "yes"}, "QUERY_TAKE"},
		{"no time for takes", map[string]string{"QUERY_TAKE_TIMEOUT": "999us"}, "QUERY_TAKE_TIMEOUT"},
		{"too much time for takes", map[string]string{"QUERY_TAKE_TIMEOUT": "5001ms"}, "QUERY_TAKE_TIMEOUT"},
		{"no network", map[string]string{"QUERY_TRUSTED_PROXIES": "proxy.example"}, "QUERY_TRUSTED_PROXIES"},
		{"namespace", map[string]string{"TALLYROLL_NAMESPACE": "a b"}, "TALLYROLL_NAMESPACE"},
		{"certificate without key", map[string]string{"QUERY_TLS_CERT": nothing}, "QUERY_TLS_CERT"},
		{"key without certificate", map[string]string{"QUERY_TLS_KEY": nothing}, "QUERY_TLS_KEY"},
		{"no certificate", map[string]string{"QUERY_TLS_CERT": nothing, "QUERY_TLS_KEY": nothing}, "QUERY_TLS_CERT"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var env []string
			for key, value := range c.env {
				env = append(env, key+"="+value)
			}
			var s Settings
			err := boot.Parse(&s, env...)
			var setting *boot.SettingError
			switch {
			case c.key == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.key != "" && (!errors.As(err, &setting) || setting.Key != c.key):
				t.Errorf("got %v, want an error about %s", err, c.key)
			case c.key == "QUERY_TOKENS" && setting.Value != "":
				t.Errorf("the error shows the secret: %v", err)
			case c.key == "" && s.MaxKeys != 1000:
				t.Errorf("%d counters", s.MaxKeys)
			}
		})
	}
}
