package boot

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/cases"
)

func TestRedisURLSaysKindAddressAndLogin(t *testing.T) {
	cases.Check(t, "redisurl", func(t *testing.T, section, given string) string {
		var u RedisURL
		if err := u.UnmarshalText([]byte(given)); err != nil {
			require.Equal(t, "refused", section, err)
			require.NotContains(t, err.Error(), "hunter2", given)
			allowed, why, _ := strings.Cut(err.Error(), " (")
			require.Contains(t, allowed, "redis+sentinel://", given)
			return "(" + why
		}
		require.NotEqual(t, "refused", section, given)
		client := Redis{URL: u}.Client()
		defer client.Close()
		kind := "single"
		retries := 0 // what counts twice when it is repeated is never repeated by a client (redis_test.go)
		switch c := client.(type) {
		case *redis.ClusterClient:
			kind = "cluster"
			node := redis.NewClient(&redis.Options{MaxRetries: c.Options().MaxRetries})
			defer node.Close()
			retries = node.Options().MaxRetries
			require.False(t, c.Options().ReadOnly, "it reads from replicas")
		case *redis.Client:
			if c.Options().Addr == "FailoverClient" {
				kind = "sentinel"
			}
			retries = c.Options().MaxRetries
		}
		require.Zero(t, retries, given)
		o := *u.options
		out := fmt.Sprintf("%s at %s, database %d", kind, strings.Join(o.Addrs, " "), o.DB)
		for name, value := range map[string]string{
			"\nmaster ": o.MasterName, "\nlogin ": o.Username + ":" + o.Password, "\nlogin of sentinels ": o.SentinelUsername + ":" + o.SentinelPassword,
		} {
			require.Equal(t, kind == "cluster", o.IsClusterMode, given)
			if value != "" && value != ":" {
				out += name + value
			}
		}
		if o.TLSConfig != nil {
			out += "\nTLS for " + o.TLSConfig.ServerName
		}
		lines := strings.Split(out, "\n")
		slices.Sort(lines[1:])
		o.Addrs, o.DB, o.MasterName, o.Username, o.Password, o.SentinelUsername, o.SentinelPassword, o.TLSConfig, o.IsClusterMode = nil, 0, "", "", "", "", "", nil, false
		require.Zero(t, o, "an option that is not shown")
		return strings.Join(lines, "\n")
	})
}

func TestNATSURLNeverPrintsItsSecret(t *testing.T) {
	cases.Check(t, "natsurl", func(t *testing.T, section, given string) string {
		var s NATSServers
		err := s.UnmarshalText([]byte(given))
		require.Equal(t, section != "refused", s.Set(), given)
		if err != nil {
			require.NotContains(t, err.Error(), "hunter2", given)
			allowed, why, _ := strings.Cut(err.Error(), " (")
			require.Contains(t, allowed, "tls://", given)
			return "(" + why
		}
		marshalled, _ := json.Marshal(struct{ URL NATSServers }{s})
		for _, printed := range []string{
			fmt.Sprint(s), fmt.Sprintf("%+v", s), fmt.Sprintf("%#v", s), fmt.Sprintf("%q", s), fmt.Sprintf("%+v", struct{ url NATSServers }{s}), string(marshalled),
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

func TestJetStreamIsAskedAtItsDomainOrPrefix(t *testing.T) {
	for _, c := range []struct {
		access       NATSAccess
		subject, far string
		imported     bool
	}{
		{NATSAccess{}, "$JS.API.STREAM.INFO.X", "", false},
		{NATSAccess{JSDomain: "leaf"}, "$JS.leaf.API.STREAM.INFO.X", "in the domain leaf", false},
		{NATSAccess{JSAPIPrefix: "$JS.leaf.API."}, "$JS.leaf.API.STREAM.INFO.X", "in the domain leaf", false},
		{NATSAccess{JSAPIPrefix: "JS.acc.API"}, "JS.acc.API.STREAM.INFO.X", "at the API prefix JS.acc.API", true},
		{NATSAccess{JSAPIPrefix: "JS.acc.API."}, "JS.acc.API.STREAM.INFO.X", "at the API prefix JS.acc.API", true},
		{NATSAccess{JSAPIPrefix: "$JS.API"}, "$JS.API.STREAM.INFO.X", "", false},
		{NATSAccess{JSAPIPrefix: "$JS.a.b.API"}, "$JS.a.b.API.STREAM.INFO.X", "at the API prefix $JS.a.b.API", true}, // no domain
	} {
		js, err := c.access.JetStream(&nats.Conn{})
		require.NoError(t, err)
		require.Equal(t, c.subject, JetStreamSubject(js, "STREAM.INFO.X"))
		require.Equal(t, c.far, FarJetStream(js), c.subject)
		require.Equal(t, c.imported, IsImported(js), c.subject)
	}
}

// A prefix holds for the account of the mirror. Asked from another account, it could lead to another stream of the same name, and
// as_of would claim what that one says.
func TestOriginOfAMirrorIsAskedOnlyWhereItsPrefixHolds(t *testing.T) {
	leaf, other := NATSAccess{JSDomain: "leaf"}, NATSAccess{JSAPIPrefix: "a.b"}
	prefix := func(p string) *jetstream.ExternalStream { return &jetstream.ExternalStream{APIPrefix: p} }
	for name, c := range map[string]struct {
		access   NATSAccess
		external *jetstream.ExternalStream
		subject  string // empty: the origin cannot be asked
	}{
		"beside the mirror":                {NATSAccess{}, nil, "$JS.API.X"},
		"beside it, at the leaf":           {leaf, nil, "$JS.leaf.API.X"},
		"beside it, in another account":    {other, &jetstream.ExternalStream{DeliverPrefix: "d"}, "a.b.X"},
		"the usual prefix, at the leaf":    {leaf, prefix("$JS.API"), "$JS.leaf.API.X"},
		"in another domain":                {NATSAccess{}, prefix("$JS.hub.API"), "$JS.hub.API.X"},
		"the other domain, at the leaf":    {leaf, prefix("$JS.hub.API"), "$JS.hub.API.X"},
		"an import":                        {NATSAccess{}, prefix("c.d"), "c.d.X"},
		"an import, at the leaf":           {leaf, prefix("c.d"), ""},
		"an import of the other account":   {other, prefix("c.d"), ""},
		"a domain, from the other account": {other, prefix("$JS.hub.API"), ""},
	} {
		js, err := c.access.JetStream(&nats.Conn{})
		require.NoError(t, err)
		origin, err := OriginJetStream(js, c.external)
		require.Equal(t, c.subject == "", err != nil, "%s: %v", name, err)
		if err == nil {
			require.Equal(t, c.subject, JetStreamSubject(origin, "X"), name)
		}
	}
}
