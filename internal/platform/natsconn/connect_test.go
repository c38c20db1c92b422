package natsconn

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/platform/setting"
	"tallyroll/tests/cases"
	"tallyroll/tests/stack"
)

// ConnectedUrlRedacted leaves tokens in: outside of this package no code may ask a
// connection where it is.
func TestOnlyNatsconnAsksConnectionsForTheirServers(t *testing.T) {
	for _, dir := range []string{"../../../cmd", "../.."} {
		err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || filepath.Base(filepath.Dir(path)) == "natsconn" {
				return err
			}
			text, err := os.ReadFile(path)
			if bytes.Contains(text, []byte(".ConnectedUrl")) {
				t.Errorf("%s asks a connection for its URL: take natsconn.ServerOf", path)
			}
			return err
		})
		require.NoError(t, err)
	}
}

// A file of NATS_URL can change who connects, as long as that is the same for all servers.
func TestNATSLoginIsReadFromTheFileOfTheURL(t *testing.T) {
	path := filepath.Join(t.TempDir(), "url")
	n := Settings{URLFile: setting.SecretFile{Key: "NATS_URL_FILE", Path: path}, Access: Access{User: "other", Password: "own"}}
	for text, want := range map[string]natsLogin{
		"nats://u:p%2C@a,nats://u:p%2C@b": {user: "u", password: "p,"}, "nats://token@a,b": {token: "token"}, "a:1": {user: "other", password: "own"},
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		if got, err := n.readLogin(); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"nats://u:hunter2@a,nats://v:hunter2@b", "http://u:hunter2@h"} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		if _, err := n.readLogin(); err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// A server that speaks only after the TLS handshake is named as such.
func TestServerWithHandshakeFirstIsNamed(t *testing.T) {
	t.Parallel()
	certificate := stack.NewCertificate(t)
	pair, err := tls.LoadX509KeyPair(certificate.CertFile, certificate.KeyFile)
	require.NoError(t, err)
	broker := stack.NATS(t, func(o *server.Options) {
		o.TLSConfig, o.TLSHandshakeFirst = &tls.Config{Certificates: []tls.Certificate{pair}}, true
	})
	var at Settings
	require.NoError(t, at.URL.UnmarshalText([]byte(broker.URL())))
	_, err = nats.Connect(*at.URL.text)
	require.ErrorContains(t, at.explainRefusal(err), "handshake_first: auto")
}

func TestNATSURLNeverPrintsItsSecret(t *testing.T) {
	cases.Check(t, "natsurl", func(t *testing.T, section, given string) string {
		var s Servers
		err := s.UnmarshalText([]byte(given))
		require.Equal(t, section != "refused", s.Set(), given)
		if err != nil {
			require.NotContains(t, err.Error(), "hunter2", given)
			allowed, why, _ := strings.Cut(err.Error(), " (")
			require.Contains(t, allowed, "tls://", given)
			return "(" + why
		}
		marshalled, _ := json.Marshal(struct{ URL Servers }{s})
		for _, printed := range []string{
			fmt.Sprint(s), fmt.Sprintf("%+v", s), fmt.Sprintf("%#v", s), fmt.Sprintf("%q", s), fmt.Sprintf("%+v", struct{ url Servers }{s}), string(marshalled),
		} {
			require.NotContains(t, printed, "hunter2", given)
		}
		return *s.text + "\n" + s.String()
	})
}

func TestJetStreamIsAskedAtItsDomainOrPrefix(t *testing.T) {
	for _, c := range []struct {
		access       Access
		subject, far string
		imported     bool
	}{
		{Access{}, "$JS.API.STREAM.INFO.X", "", false},
		{Access{JSDomain: "leaf"}, "$JS.leaf.API.STREAM.INFO.X", "in the domain leaf", false},
		{Access{JSAPIPrefix: "$JS.leaf.API."}, "$JS.leaf.API.STREAM.INFO.X", "in the domain leaf", false},
		{Access{JSAPIPrefix: "JS.acc.API"}, "JS.acc.API.STREAM.INFO.X", "at the API prefix JS.acc.API", true},
		{Access{JSAPIPrefix: "JS.acc.API."}, "JS.acc.API.STREAM.INFO.X", "at the API prefix JS.acc.API", true},
		{Access{JSAPIPrefix: "$JS.API"}, "$JS.API.STREAM.INFO.X", "", false},
		{Access{JSAPIPrefix: "$JS.a.b.API"}, "$JS.a.b.API.STREAM.INFO.X", "at the API prefix $JS.a.b.API", true}, // no domain
	} {
		js, err := c.access.JetStream(&nats.Conn{})
		require.NoError(t, err)
		require.Equal(t, c.subject, APISubject(js, "STREAM.INFO.X"))
		require.Equal(t, c.far, DescribeRemote(js), c.subject)
		require.Equal(t, c.imported, IsImported(js), c.subject)
	}
}

// A prefix holds for the account of the mirror. Asked from another account, it could lead to another stream
// of the same name, and as_of would claim what that one says.
func TestOriginOfAMirrorIsAskedOnlyWhereItsPrefixHolds(t *testing.T) {
	leaf, other := Access{JSDomain: "leaf"}, Access{JSAPIPrefix: "a.b"}
	prefix := func(p string) *jetstream.ExternalStream { return &jetstream.ExternalStream{APIPrefix: p} }
	for name, c := range map[string]struct {
		access   Access
		external *jetstream.ExternalStream
		subject  string // empty: the origin cannot be asked
	}{
		"beside the mirror":                {Access{}, nil, "$JS.API.X"},
		"beside it, at the leaf":           {leaf, nil, "$JS.leaf.API.X"},
		"beside it, in another account":    {other, &jetstream.ExternalStream{DeliverPrefix: "d"}, "a.b.X"},
		"the usual prefix, at the leaf":    {leaf, prefix("$JS.API"), "$JS.leaf.API.X"},
		"in another domain":                {Access{}, prefix("$JS.hub.API"), "$JS.hub.API.X"},
		"the other domain, at the leaf":    {leaf, prefix("$JS.hub.API"), "$JS.hub.API.X"},
		"an import":                        {Access{}, prefix("c.d"), "c.d.X"},
		"an import, at the leaf":           {leaf, prefix("c.d"), ""},
		"an import of the other account":   {other, prefix("c.d"), ""},
		"a domain, from the other account": {other, prefix("$JS.hub.API"), ""},
	} {
		js, err := c.access.JetStream(&nats.Conn{})
		require.NoError(t, err)
		origin, err := OriginJetStream(js, c.external)
		require.Equal(t, c.subject == "", err != nil, "%s: %v", name, err)
		if err == nil {
			require.Equal(t, c.subject, APISubject(origin, "X"), name)
		}
	}
}
