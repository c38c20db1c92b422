package e2e_test

import (
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// Certificates that do not fit are not waited for: the error says whose and which setting.
func TestNATSOverTLS(t *testing.T) {
	t.Parallel()
	ours, other := stack.NewCertificate(t), stack.NewCertificate(t)
	config, err := server.GenTLSConfig(&server.TLSConfigOpts{CertFile: ours.CertFile, KeyFile: ours.KeyFile, CaFile: ours.CertFile, Verify: true, Timeout: 5})
	require.NoError(t, err)
	nats := stack.NATS(t, func(o *server.Options) { o.TLS, o.TLSVerify, o.TLSTimeout, o.TLSConfig = true, true, 5, config })
	plain, redis := stack.NATS(t), stack.Redis(t)
	url := "NATS_URL=" + strings.Replace(nats.URL(), "nats://", "tls://", 1)
	ca, cert, key := "NATS_CA="+ours.CertFile, "NATS_CERT="+ours.CertFile, "NATS_KEY="+ours.KeyFile
	for _, c := range []struct {
		name string
		env  []string
		want string
	}{
		{"an unknown authority", []string{url, cert, key}, "set NATS_CA"},
		{"no client certificate", []string{url, ca}, "set NATS_CERT"},
		{"another client certificate", []string{url, ca, "NATS_CERT=" + other.CertFile, "NATS_KEY=" + other.KeyFile}, "set NATS_CERT"},
		{"a key of another certificate", []string{url, ca, cert, "NATS_KEY=" + other.KeyFile}, "NATS_CERT"},
		{"a server without TLS", []string{"NATS_URL=" + strings.Replace(plain.URL(), "nats://", "tls://", 1)}, "NATS_URL"},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, out := ends(t, "publish", []string{"--count", "1"}, c.env...)
			if code != 2 || !strings.Contains(out, c.want) {
				t.Errorf("publish ends with %d and %q, want code 2 and %q", code, out, c.want)
			}
		})
	}
	if code, out := ends(t, "publish", []string{"--version"}, url); code != 0 {
		t.Errorf("publish --version ends with %d and %q", code, out)
	}
	ingest := stack.Ingest(t, nil, redis, url, ca, cert, key)
	if code := ingest.Stop(); code != 0 {
		t.Errorf("ingest ends with %d", code)
	}
}
