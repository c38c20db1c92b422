package e2e_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// userKey makes an NKey, and a file with its seed.
func userKey(t *testing.T) (public, file string) {
	t.Helper()
	pair, err := nkeys.CreateUser()
	require.NoError(t, err)
	seed, err := pair.Seed()
	require.NoError(t, err)
	if public, err = pair.PublicKey(); err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "user.nk")
	require.NoError(t, os.WriteFile(file, seed, 0o600))
	return public, file
}

// saveContext writes a context as the nats command does, with every field, and returns its path and the XDG_CONFIG_HOME
// below which it has a name.
func saveContext(t *testing.T, name string, fields map[string]any) (path, config string) {
	t.Helper()
	all := map[string]any{
		"description": "", "url": "", "socks_proxy": "", "token": "", "user": "", "password": "", "creds": "", "nkey": "", "cert": "",
		"key": "", "ca": "", "nsc": "", "jetstream_domain": "", "jetstream_api_prefix": "", "jetstream_event_prefix": "", "inbox_prefix": "",
		"user_jwt": "", "user_seed": "", "color_scheme": "", "tls_first": false, "windows_cert_store": "", "windows_cert_match_by": "",
		"windows_cert_match": "", "windows_ca_certs_match": nil,
	}
	for k, v := range fields {
		all[k] = v
	}
	text, err := json.MarshalIndent(all, "", "  ")
	require.NoError(t, err)
	config = t.TempDir()
	path = filepath.Join(config, "nats", "context", name+".json")
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, text, 0o600))
	return path, config
}

// keyed is a server with one account, whose user has an NKey or a password.
func keyed(t *testing.T) (n *stack.NATSEmbedded, seed string, owner nats.Option) {
	t.Helper()
	public, seed := userKey(t)
	n = configured(t, fmt.Sprintf("accounts { A { jetstream: enabled, users: [{nkey: %s}, {user: tally, password: %s}] } }", public, secret))
	return n, seed, nats.UserInfo("tally", secret)
}

func TestNKey(t *testing.T) {
	t.Parallel()
	n, seed, owner := keyed(t)
	ownNATS{[]string{"NATS_URL=" + n.URL(), "NATS_NKEY=" + seed}, n.Conn(owner), jetStreamOf(t, n.Conn(owner))}.countsExactly(t)
}

// A context by its name says where and, by an NKey, as whom to connect; nothing else does.
func TestContextByName(t *testing.T) {
	t.Parallel()
	n, seed, owner := keyed(t)
	_, config := saveContext(t, "prod", map[string]any{"description": "ours", "url": n.URL(), "nkey": seed, "inbox_prefix": "_INBOX_x"})
	ownNATS{[]string{"NATS_CONTEXT=prod", "XDG_CONFIG_HOME=" + config}, n.Conn(owner), jetStreamOf(t, n.Conn(owner))}.countsExactly(t)
}

// A context by its path leads to the domain of a leaf node.
func TestContextByPath(t *testing.T) {
	t.Parallel()
	leaf, hub := leafAndHub(t)
	path, _ := saveContext(t, "edge", map[string]any{"url": hub.URL(), "jetstream_domain": "leaf"})
	ownNATS{[]string{"NATS_CONTEXT=" + path}, hub.Conn(), leaf.JetStream()}.countsExactly(t)
}

// Settings win over the context: where to connect, and, as a whole, as whom.
func TestSettingsWinOverTheContext(t *testing.T) {
	t.Parallel()
	n, seed, _ := keyed(t)
	nowhere := fmt.Sprintf("nats://127.0.0.1:%d", stack.FreePort(t))
	for name, c := range map[string]struct {
		fields map[string]any
		env    []string
	}{
		"url":                     {map[string]any{"url": nowhere, "user": "tally", "password": secret}, []string{"NATS_URL=" + n.URL()}},
		"user":                    {map[string]any{"url": n.URL(), "nkey": seed}, []string{"NATS_USER=tally", "NATS_PASSWORD=" + secret}},
		"user of NATS_URL":        {map[string]any{"url": nowhere, "user": "x", "password": "y"}, []string{"NATS_URL=" + strings.Replace(n.URL(), "//", "//tally:"+secret+"@", 1)}},
		"user of the url":         {map[string]any{"url": strings.Replace(n.URL(), "//", "//x:y@", 1)}, []string{"NATS_USER=tally", "NATS_PASSWORD=" + secret}},
		"password":                {map[string]any{"url": n.URL(), "user": "tally", "password": "x"}, []string{"NATS_PASSWORD=" + secret}},
		"nkey":                    {map[string]any{"url": n.URL(), "user": "tally", "password": "x"}, []string{"NATS_NKEY=" + seed}},
		"domain":                  {map[string]any{"url": n.URL(), "nkey": seed, "jetstream_api_prefix": "JS.none"}, []string{"NATS_JS_API_PREFIX=$JS.API"}},
		"nothing but the context": {map[string]any{"url": n.URL(), "user": "tally", "password": secret}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			redis := stack.Redis(t)
			path, _ := saveContext(t, "c", c.fields)
			ingest := stack.Ingest(t, nil, redis, append(c.env, "NATS_CONTEXT="+path, "LOG_LEVEL=debug")...)
			if code := ingest.Stop(); code != 0 {
				t.Errorf("ingest ends with %d", code)
			}
			if strings.Contains(ingest.Logs(), secret) {
				t.Error("the log has the secret")
			}
		})
	}
}

// What cannot be honoured is refused by name, before anything is connected, and no secret is quoted.
func TestANATSContextThatCannotWorkIsRefused(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for name, c := range map[string]struct {
		fields map[string]any
		want   string
	}{
		"socks_proxy":  {map[string]any{"socks_proxy": "socks5://u:" + secret + "@h:1"}, `"socks_proxy" is not supported`},
		"nsc":          {map[string]any{"nsc": "nsc://o/a/u"}, `"nsc" is not supported`},
		"a later one":  {map[string]any{"become": secret}, "it has a field that is not known here"},
		"windows":      {map[string]any{"windows_ca_certs_match": []string{"x"}}, "windows_ca_certs_match"},
		"env":          {map[string]any{"user": "u", "password": "env://" + secret}, "password with env:"},
		"op":           {map[string]any{"creds": "op://" + secret}, "creds with op:"},
		"two":          {map[string]any{"user": "u", "password": secret, "nkey": empty}, "only one of user and nkey"},
		"no user":      {map[string]any{"password": secret}, "password needs user"},
		"no JWT":       {map[string]any{"user_seed": secret}, "user_seed needs user_jwt"},
		"no key":       {map[string]any{"cert": empty}, "cert and key"},
		"a number":     {map[string]any{"token": 42}, "token is not a string"},
		"tls_first":    {map[string]any{"tls_first": "yes"}, "tls_first is neither"},
		"url":          {map[string]any{"url": "http://u:" + secret + "@h"}, "url: allowed is comma-separated"},
		"an empty key": {map[string]any{"nkey": empty}, "a context whose nkey is"},
		"no file":      {map[string]any{"creds": empty + "x"}, "a context whose creds is"},
		"two prefixes": {map[string]any{"jetstream_domain": "a", "jetstream_api_prefix": "b"}, "jetstream_api_prefix"},
	} {
		path, config := saveContext(t, "c", c.fields)
		for _, program := range []string{"ingest", "query", "publish"} {
			t.Run(name+" "+program, func(t *testing.T) {
				code, out := ends(t, program, nil, "NATS_CONTEXT=c", "XDG_CONFIG_HOME="+config, "INGEST_ADDR=127.0.0.1:0", "QUERY_ADDR=127.0.0.1:0")
				if code != 2 || !strings.HasPrefix(out, program+": NATS_CONTEXT=\"c\"") || !strings.Contains(out, c.want) || strings.Count(out, "\n") != 1 || strings.Contains(out, secret) {
					t.Errorf("%s: it ends with %d and %q, want code 2 and one line with %q", path, code, out, c.want)
				}
			})
		}
	}
}
