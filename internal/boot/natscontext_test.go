package boot

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseContext(t *testing.T) {
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

// Who connects is taken as a whole from the settings or from the context.
func TestCompletedSettings(t *testing.T) {
	context := func(text string) NATSAccess {
		c, err := parseContext([]byte(text))
		require.NoError(t, err)
		return NATSAccess{context: c}
	}
	servers := func(text string) (s NATSServers) {
		require.NoError(t, s.UnmarshalText([]byte(text)))
		return s
	}
	all := context(`{"url":"nats://t@c:1","token":"t","user_jwt":"j","user_seed":"s","cert":"cc","key":"ck","ca":"cca","jetstream_domain":"cd","inbox_prefix":"ci","tls_first":true}`)
	standard := servers("nats://127.0.0.1:4222")

	got := NATS{URL: standard, NATSAccess: all}.complete()
	if *got.URL.text != "nats://t@c:1" || got.Token != "t" || got.context.jwt != "j" || got.Cert != "cc" || got.Key != "ck" || got.CA != "cca" ||
		got.JSDomain != "cd" || got.InboxPrefix != "ci" || len(got.context.options()) != 2 {
		t.Errorf("the context alone gives %+v, %s", got, *got.URL.text)
	}
	own := all
	own.User, own.Cert, own.Key, own.JSAPIPrefix = "me", "oc", "ok", "op"
	got = NATS{URL: standard, NATSAccess: own}.complete()
	if *got.URL.text != "nats://c:1" || got.User != "me" || got.Token+got.context.jwt+got.context.seed != "" || got.Cert != "oc" || got.Key != "ok" ||
		got.CA != "cca" || got.JSDomain != "" || got.JSAPIPrefix != "op" {
		t.Errorf("with settings of its own: %+v, %s", got, *got.URL.text)
	}
	got = NATS{URL: servers("o"), URLGiven: true, NATSAccess: all}.complete()
	if got.URL.String() != "o" || got.Token != "t" {
		t.Errorf("with NATS_URL: %+v", got)
	}
	got = NATS{URL: servers("nats://u:p@o"), URLGiven: true, NATSAccess: all}.complete()
	if *got.URL.text != "nats://u:p@o" || got.Token+got.context.jwt != "" || got.Cert != "cc" {
		t.Errorf("with a user in NATS_URL: %+v", got)
	}
	got = NATS{URL: standard, NATSAccess: NATSAccess{Context: "no servers"}}.complete()
	require.Equal(t, "127.0.0.1:4222", got.URL.String())
	for text, says := range map[string]string{
		`{"url":"nats://u:hunter2"`: "not a JSON object", `{"hunter2":"x"}`: "not known here: supported are ca, cert, creds", `{"nsc":"hunter2"}`: `"nsc" is not supported`,
	} {
		_, err := parseContext([]byte(text))
		if err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
