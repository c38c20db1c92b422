package natsconn

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"

	"tallyroll/internal/setting"
)

// A context is a JSON file of the nats command with servers and credentials. The available libraries for it
// connect by themselves, ignore unknown fields, or depend on a table printer and an expression language.

type natsContext struct {
	servers Servers // not set if the context has none

	user, password, token, creds, nkey string
	jwt, seed                          string
	cert, key, ca                      string
	tlsFirst                           bool
	inboxPrefix, jsDomain, jsAPIPrefix string
}

// contextNotes are the fields of a context that change neither servers nor credentials. Without
// jetstream_event_prefix, advisories about new streams may not arrive, which costs a second.
var contextNotes = []string{"name", "description", "color_scheme", "jetstream_event_prefix"}

// contextOthers are the fields of a context that are not supported.
var contextOthers = []string{"nsc", "socks_proxy", "windows_ca_certs_match", "windows_cert_match", "windows_cert_match_by", "windows_cert_store"}

const contextForms = "the name of a context of the nats command, or a path with a slash to its file"

// readContext reads the context of NATS_CONTEXT, which may be a secret by mistake. Errors quote only known
// names and paths.
func readContext(name string) (natsContext, error) {
	path, err := contextPath(name)
	if err != nil {
		return natsContext{}, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return natsContext{}, fmt.Errorf("%s (%w)", contextForms, err)
	}
	c, err := parseContext(text)
	if err != nil {
		return natsContext{}, fmt.Errorf("a context that can be used as a whole (%s: %w)", path, err)
	}
	return c, nil
}

func contextPath(name string) (string, error) {
	switch {
	case strings.ContainsAny(name, `/\`):
		return expandPath(name), nil
	case strings.Contains(name, ".."):
		return "", errors.New(contextForms)
	}
	config := os.Getenv("XDG_CONFIG_HOME")
	if config == "" {
		home, err := homeDirectory()
		if err != nil {
			return "", fmt.Errorf("%s (no XDG_CONFIG_HOME, and no home directory: %w)", contextForms, err)
		}
		config = filepath.Join(home, ".config")
	}
	return filepath.Join(config, "nats", "context", name+".json"), nil
}

// homeDirectory prefers the password file, as the nats command does. An image built from scratch has none.
func homeDirectory() (string, error) {
	u, err := user.Current()
	if err == nil && u.HomeDir != "" {
		return u.HomeDir, nil
	}
	return os.UserHomeDir()
}

// expandPath expands variables and a ~ at the beginning, as the nats command does.
func expandPath(path string) string {
	path = os.ExpandEnv(path)
	if !strings.HasPrefix(path, "~") {
		return path
	}
	home, err := homeDirectory()
	if err != nil {
		return path
	}
	return home + path[1:]
}

func parseContext(text []byte) (natsContext, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return natsContext{}, errors.New("not a JSON object") // err quotes a character
	}
	var c natsContext
	var servers string
	texts := map[string]*string{
		"url": &servers, "user": &c.user, "password": &c.password, "token": &c.token,
		"creds": &c.creds, "nkey": &c.nkey, "user_jwt": &c.jwt, "user_seed": &c.seed,
		"cert": &c.cert, "key": &c.key, "ca": &c.ca,
		"inbox_prefix": &c.inboxPrefix, "jetstream_domain": &c.jsDomain, "jetstream_api_prefix": &c.jsAPIPrefix,
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		value := fields[name]
		into := texts[name]
		switch {
		case into != nil:
			if json.Unmarshal(value, into) != nil {
				return natsContext{}, fmt.Errorf("%s is not a string", name)
			}
		case name == "tls_first":
			if json.Unmarshal(value, &c.tlsFirst) != nil {
				return natsContext{}, fmt.Errorf("%s is neither true nor false", name)
			}
		case !slices.Contains(contextNotes, name) && !isBlank(value):
			if !slices.Contains(contextOthers, name) {
				return natsContext{}, fmt.Errorf("it has an unknown field: supported are %s", strings.Join(append(slices.Sorted(maps.Keys(texts)), "tls_first"), ", ")) // its name may be a secret in the wrong place
			}
			return natsContext{}, fmt.Errorf("its field %q is not supported here", name)
		}
	}
	if servers != "" {
		if err := c.servers.UnmarshalText([]byte(servers)); err != nil {
			return natsContext{}, fmt.Errorf("url: allowed is %w", err)
		}
	}
	return c, c.complete()
}

// isBlank reports whether a value sets nothing. The nats command writes every field, used or not.
func isBlank(value json.RawMessage) bool {
	return slices.Contains([]string{`""`, "false", "null", "0", "[]", "{}"}, string(value))
}

// complete resolves paths, and refuses fields that contradict or lack each other.
func (c *natsContext) complete() error {
	for name, path := range map[string]*string{"creds": &c.creds, "nkey": &c.nkey, "cert": &c.cert, "key": &c.key, "ca": &c.ca} {
		switch scheme := schemeOf(*path); scheme {
		case "":
		case "file":
			*path = (*path)[len("file://"):]
		default:
			return fmt.Errorf("%s with %s: is not supported here, only a file", name, scheme)
		}
		*path = expandPath(*path)
	}
	// The nats command reads these values from elsewhere if they have such a form. NATS would refuse the
	// values themselves.
	for name, value := range map[string]string{"password": c.password, "token": c.token, "user_jwt": c.jwt, "user_seed": c.seed} {
		if slices.Contains([]string{"op", "nsc", "env", "file", "data"}, schemeOf(value)) {
			return fmt.Errorf("%s with %s: is not supported here, only the value itself", name, schemeOf(value))
		}
	}
	var identities []string
	for _, i := range []struct{ name, value string }{{"user", c.user}, {"creds", c.creds}, {"nkey", c.nkey}, {"user_jwt", c.jwt}} {
		if i.value != "" {
			identities = append(identities, i.name)
		}
	}
	switch {
	case len(identities) > 1:
		return fmt.Errorf("only one of %s can be the identity", strings.Join(identities, " and "))
	case c.password != "" && c.user == "":
		return errors.New("password needs user")
	case c.seed != "" && c.jwt == "":
		return errors.New("user_seed needs user_jwt")
	case (c.cert == "") != (c.key == ""):
		return errors.New("cert and key need each other")
	}
	return cmp.Or(
		checkJetStream("jetstream_domain", c.jsDomain, "jetstream_api_prefix", c.jsAPIPrefix),
		checkInboxPrefix("inbox_prefix", c.inboxPrefix),
	)
}

// schemeOf returns the scheme of a reference; "" without one. A single letter is a drive.
func schemeOf(ref string) string {
	u, err := url.Parse(ref)
	if err != nil || len(u.Scheme) < 2 {
		return ""
	}
	return u.Scheme
}

func (c natsContext) withoutCredentials() natsContext {
	c.user, c.password, c.token, c.creds, c.nkey, c.jwt, c.seed = "", "", "", "", "", "", ""
	if c.servers.Set() {
		c.servers = c.servers.withoutCredentials()
	}
	return c
}

// options returns the connection's options that have no setting.
func (c natsContext) options() []nats.Option {
	var opts []nats.Option
	switch {
	case c.jwt != "" && c.seed != "":
		opts = append(opts, nats.UserJWTAndSeed(c.jwt, c.seed))
	case c.jwt != "": // a bearer token, which needs no signature
		opts = append(opts, nats.UserJWT(func() (string, error) { return c.jwt, nil }, func([]byte) ([]byte, error) { return nil, nil }))
	}
	if c.tlsFirst {
		opts = append(opts, nats.TLSHandshakeFirst())
	}
	return opts
}

// checkJetStream checks a domain and a prefix. The keys name the settings or the fields of a context.
func checkJetStream(domainKey, domain, prefixKey, prefix string) error {
	if domain != "" && prefix != "" {
		return &setting.Error{Key: domainKey, Value: domain, Allowed: fmt.Sprintf("a domain, if %s=%q is not set: a domain is the prefix $JS.<domain>.API", prefixKey, prefix)}
	}
	if domain != "" && (!plainTokens(domain) || strings.Contains(domain, ".")) {
		return &setting.Error{Key: domainKey, Value: domain, Allowed: "the name of a JetStream domain: visible characters without dots and wildcards, such as leaf"}
	}
	if prefix != "" && !plainTokens(strings.TrimSuffix(prefix, ".")) {
		return &setting.Error{Key: prefixKey, Value: prefix, Allowed: "a subject without wildcards, such as JS.counts.API"}
	}
	return nil
}

func checkInboxPrefix(key, prefix string) error {
	if prefix != "" && !plainTokens(prefix) {
		return &setting.Error{Key: key, Value: prefix, Allowed: "a subject without wildcards, such as _INBOX_tallyroll"}
	}
	return nil
}

// plainTokens reports whether a text is a subject without wildcards.
func plainTokens(subject string) bool {
	for token := range strings.SplitSeq(subject, ".") {
		if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r == '*' || r == '>' || r == 0x7f }) {
			return false
		}
	}
	return true
}
