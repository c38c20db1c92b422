package natsconn

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/platform/setting"
	"tallyroll/tests/cases"
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

func TestNATSContextIsRead(t *testing.T) {
	t.Setenv("WHERE", "/etc/nats")
	c, err := parseContext([]byte(`{"url":"nats://u:hunter2@h:1, i","user":"u","password":"hunter2","ca":"$WHERE/ca.pem","cert":"file:///c.pem","key":"~/k.pem",
		"tls_first":true,"nsc":"","windows_ca_certs_match":null,"color_scheme":"red","later":"","jetstream_event_prefix":"x","inbox_prefix":"_I"}`))
	require.NoError(t, err)
	home, err := homeDirectory()
	require.NoError(t, err)
	if c.servers.String() != "h:1,i" || c.user != "u" || c.password != "hunter2" || c.ca != "/etc/nats/ca.pem" || c.cert != "/c.pem" ||
		c.key != home+"/k.pem" || !c.tlsFirst || c.inboxPrefix != "_I" {
		t.Errorf("%+v", c)
	}
}

func TestNATSLoginIsWhollyOfTheSettingsOrOfTheContext(t *testing.T) {
	context := func(text string) Access {
		c, err := parseContext([]byte(text))
		require.NoError(t, err)
		return Access{context: c}
	}
	servers := func(text string) (s Servers) {
		require.NoError(t, s.UnmarshalText([]byte(text)))
		return s
	}
	all := context(`{"url":"nats://t@c:1","token":"t","user_jwt":"j","user_seed":"s","cert":"cc","key":"ck","ca":"cca","jetstream_domain":"cd","inbox_prefix":"ci","tls_first":true}`)
	standard := servers("nats://127.0.0.1:4222")

	got := Settings{URL: standard, Access: all}.complete()
	if *got.URL.text != "nats://t@c:1" || got.Token != "t" || got.context.jwt != "j" || got.Cert != "cc" || got.Key != "ck" || got.CA != "cca" ||
		got.JSDomain != "cd" || got.InboxPrefix != "ci" || len(got.context.options()) != 2 {
		t.Errorf("the context alone gives %+v, %s", got, *got.URL.text)
	}
	own := all
	own.User, own.Cert, own.Key, own.JSAPIPrefix = "me", "oc", "ok", "op"
	got = Settings{URL: standard, Access: own}.complete()
	if *got.URL.text != "nats://c:1" || got.User != "me" || got.Token+got.context.jwt+got.context.seed != "" || got.Cert != "oc" || got.Key != "ok" ||
		got.CA != "cca" || got.JSDomain != "" || got.JSAPIPrefix != "op" {
		t.Errorf("with settings of its own: %+v, %s", got, *got.URL.text)
	}
	got = Settings{URL: servers("o"), URLGiven: true, Access: all}.complete()
	if got.URL.String() != "o" || got.Token != "t" {
		t.Errorf("with NATS_URL: %+v", got)
	}
	got = Settings{URL: servers("nats://u:p@o"), URLGiven: true, Access: all}.complete()
	if *got.URL.text != "nats://u:p@o" || got.Token+got.context.jwt != "" || got.Cert != "cc" {
		t.Errorf("with a user in NATS_URL: %+v", got)
	}
	got = Settings{URL: standard, Access: Access{Context: "no servers"}}.complete()
	require.Equal(t, "127.0.0.1:4222", got.URL.String())
	for text, says := range map[string]string{
		`{"url":"nats://u:hunter2"`: "not a JSON object", `{"hunter2":"x"}`: "unknown field: supported are ca, cert, creds", `{"nsc":"hunter2"}`: `"nsc" is not supported`,
	} {
		_, err := parseContext([]byte(text))
		if err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
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
