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

	"tallyroll/internal/platform/setting"
)

// Settings are those of the connection to NATS.
type Settings struct {
	URL      Servers            `env:"NATS_URL" envDefault:"nats://127.0.0.1:4222" secret:"true" help:"NATS servers, comma-separated: host:port, nats://[user:password@]host:port, tls://…, ws://…, wss://…"`
	URLGiven bool               `given:"NATS_URL"`
	URLFile  setting.SecretFile `file:"NATS_URL"` // the next connection uses its users; its servers are those of the start
	Access
}

// Access holds how a program authenticates itself, which servers it trusts, and where JetStream is.
type Access struct {
	Context     string `env:"NATS_CONTEXT" help:"a context of the nats command: its name, or a path with a slash to its file; NATS_* settings take precedence"`
	Creds       string `env:"NATS_CREDS" help:"a credentials file (JWT and key)"`
	NKey        string `env:"NATS_NKEY" help:"a file with the seed of an NKey"`
	User        string `env:"NATS_USER" help:"user name"`
	Password    string `env:"NATS_PASSWORD" secret:"true" help:"password of NATS_USER"`
	Token       string `env:"NATS_TOKEN" secret:"true" help:"a token in place of user and password"`
	CA          string `env:"NATS_CA" help:"a PEM file of the authorities that sign the servers' certificates"`
	Cert        string `env:"NATS_CERT" help:"this client's certificate (PEM), with NATS_KEY"`
	Key         string `env:"NATS_KEY" help:"the private key of NATS_CERT (PEM)"`
	InboxPrefix string `env:"NATS_INBOX_PREFIX" help:"first part of the subjects on which answers come, in place of _INBOX"`
	JSDomain    string `env:"NATS_JS_DOMAIN" help:"the JetStream domain that has the streams, such as that of a leaf node; not with NATS_JS_API_PREFIX"`
	JSAPIPrefix string `env:"NATS_JS_API_PREFIX" help:"the prefix at which this account imports the JetStream API of another, such as JS.counts.API; not with NATS_JS_DOMAIN"`

	PasswordFile setting.SecretFile `file:"NATS_PASSWORD"`
	TokenFile    setting.SecretFile `file:"NATS_TOKEN"`

	context natsContext // of Context
}

// Validate reads the context and the files.
func (n *Access) Validate() error {
	cert, key := setting.Path{Key: "NATS_CERT", File: n.Cert}, setting.Path{Key: "NATS_KEY", File: n.Key}
	if err := setting.BothOrNeither(cert, key); err != nil {
		return err
	}
	if n.Creds != "" && n.NKey != "" {
		return &setting.Error{Key: "NATS_NKEY", Value: n.NKey, MustBe: "unset if NATS_CREDS is set: only one of them " +
			"can be the identity"}
	}
	if err := checkJetStream("NATS_JS_DOMAIN", n.JSDomain, "NATS_JS_API_PREFIX", n.JSAPIPrefix); err != nil {
		return err
	}
	if err := checkInboxPrefix("NATS_INBOX_PREFIX", n.InboxPrefix); err != nil {
		return err
	}
	if n.Context != "" {
		c, err := readContext(n.Context)
		if err != nil {
			return &setting.Error{Key: "NATS_CONTEXT", Value: n.Context, MustBe: err.Error()}
		}
		n.context = c
	}
	own := map[string]string{"CREDS": n.Creds, "NKEY": n.NKey, "CA": n.CA, "CERT": n.Cert, "KEY": n.Key}
	return n.complete(false).checkFiles(func(field, path, allowed string) error {
		if own[field] != "" {
			return &setting.Error{Key: "NATS_" + field, Value: path, MustBe: allowed}
		}
		allowed = strings.ReplaceAll(allowed, "NATS_KEY", "key")
		return &setting.Error{Key: "NATS_CONTEXT", Value: n.Context, MustBe: fmt.Sprintf("a context whose %s is %s",
			strings.ToLower(field), allowed)}
	})
}

// checkFiles reads the files of completed settings as the library will. Every connection rereads them, so
// renewed credentials need no restart. An NKey is the identity itself, so its file must keep the same seed.
func (n Access) checkFiles(refuse func(field, path, allowed string) error) error {
	for _, file := range []struct {
		field, path, what, of string
		use                   func() error
	}{
		{"CREDS", n.Creds, "a credentials file", "a credentials file: a user's JWT and its seed", n.checkCreds},
		{"NKEY", n.NKey, "a file", "a file with the seed of a user's NKey", n.checkNKey},
		{"CA", n.CA, "a PEM file", "a PEM file of certificates", func() error {
			return nats.RootCAs(n.CA)(&nats.Options{})
		}},
		{"KEY", n.Key, "a PEM file", "", func() error { return nil }}, // read with CERT
		{"CERT", n.Cert, "a PEM file", "a PEM certificate that belongs to the key in NATS_KEY", func() error {
			return nats.ClientCert(n.Cert, n.Key)(&nats.Options{})
		}},
	} {
		if file.path == "" {
			continue
		}
		if err := readable(file.path); err != nil {
			return refuse(file.field, file.path, fmt.Sprintf("%s that can be read (%v)", file.what, err))
		}
		if err := file.use(); err != nil {
			return refuse(file.field, file.path, fmt.Sprintf("%s (%v)", file.of, err))
		}
	}
	return nil
}

func (n Access) checkCreds() error {
	_, err := n.readCreds()
	return err
}

// readCreds returns options with the file's JWT, which sign with its seed.
func (n Access) readCreds() (*nats.Options, error) {
	text, err := os.ReadFile(n.Creds)
	if err != nil {
		return nil, err
	}
	var o nats.Options
	if err := nats.UserCredentialBytes(text)(&o); err != nil {
		return nil, err
	}
	if _, err := o.UserJWT(); err != nil {
		return nil, err
	}
	_, err = o.SignatureCB(nil)
	return &o, err
}

// checkNKey reads the seed. The library's error for other text is not specific.
func (n Access) checkNKey() error {
	option, err := nats.NkeyOptionFromSeed(n.NKey)
	if err != nil {
		return errors.New("no such seed in it")
	}
	return option(&nats.Options{})
}

// readable opens a file, because a directory or a file without read permission is as bad as a missing one.
func readable(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.IsDir() {
		return cmp.Or(err, fmt.Errorf("%s is a directory", path))
	}
	return nil
}

// complete takes from the context what no setting gives. identified: NATS_URL has credentials. Credentials
// come as a whole from the settings or from the context.
func (n Access) complete(identified bool) Access {
	c := n.context
	if n.hasCredentials() || identified {
		c = c.withoutCredentials()
	}
	n.User, n.Password, n.Token = cmp.Or(n.User, c.user), cmp.Or(n.Password, c.password), cmp.Or(n.Token, c.token)
	n.Creds, n.NKey = cmp.Or(n.Creds, c.creds), cmp.Or(n.NKey, c.nkey)
	if n.Cert == "" {
		n.Cert, n.Key = c.cert, c.key
	}
	if n.JSDomain == "" && n.JSAPIPrefix == "" {
		n.JSDomain, n.JSAPIPrefix = c.jsDomain, c.jsAPIPrefix
	}
	n.CA, n.InboxPrefix = cmp.Or(n.CA, c.ca), cmp.Or(n.InboxPrefix, c.inboxPrefix)
	n.context = c
	return n
}

// hasCredentials reports whether a setting has credentials.
func (n Access) hasCredentials() bool {
	return n.Creds != "" || n.NKey != "" || n.User != "" || n.Token != ""
}

// complete takes from the context what no setting gives. The default of NATS_URL is not a setting.
func (n Settings) complete() Settings {
	if n.URLGiven || !n.context.servers.Set() {
		n.Access = n.Access.complete(n.URLGiven && n.URL.hasCredentials())
		return n
	}
	n.URL = n.context.servers
	if n.hasCredentials() {
		n.URL = n.URL.withoutCredentials()
	}
	n.Access = n.Access.complete(false)
	return n
}

// Chosen reports whether a setting has the address of NATS or credentials.
func (n Settings) Chosen() bool { return n.URLGiven || n.Context != "" || n.hasCredentials() }

// readLogin returns the credentials that the files have now. As in the library, those in NATS_URL take
// precedence.
func (n Settings) readLogin() (natsLogin, error) {
	login := natsLogin{n.User, n.Password, n.Token}
	for _, f := range []struct {
		file setting.SecretFile
		into *string
	}{{n.PasswordFile, &login.password}, {n.TokenFile, &login.token}} {
		if !f.file.Set() {
			continue
		}
		var err error
		if *f.into, err = f.file.Read(); err != nil {
			return natsLogin{}, err
		}
	}
	if !n.URLFile.Set() {
		return login, nil
	}
	text, err := n.URLFile.Read()
	if err != nil {
		return natsLogin{}, err
	}
	var servers Servers
	if err := servers.UnmarshalText([]byte(text)); err != nil {
		return natsLogin{}, n.URLFile.Refuse(err.Error())
	}
	switch logins := servers.logins(); len(logins) {
	case 0:
		return login, nil
	case 1:
		return logins[0], nil
	}
	return natsLogin{}, n.URLFile.Refuse("a file with the same user, or token, for each of its servers")
}

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
var contextOthers = []string{"nsc", "socks_proxy", "windows_ca_certs_match", "windows_cert_match",
	"windows_cert_match_by", "windows_cert_store"}

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
				return natsContext{}, fmt.Errorf("unknown field: supported are %s",
					strings.Join(append(slices.Sorted(maps.Keys(texts)), "tls_first"),
						", ")) // its name may be a secret in the wrong place
			}
			return natsContext{}, fmt.Errorf("its field %q is not supported here", name)
		}
	}
	if servers != "" {
		if err := c.servers.UnmarshalText([]byte(servers)); err != nil {
			return natsContext{}, fmt.Errorf("url: must be %w", err)
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
	for name, path := range map[string]*string{
		"creds": &c.creds, "nkey": &c.nkey, "cert": &c.cert, "key": &c.key, "ca": &c.ca,
	} {
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
	for name, value := range map[string]string{
		"password": c.password, "token": c.token, "user_jwt": c.jwt, "user_seed": c.seed,
	} {
		if slices.Contains([]string{"op", "nsc", "env", "file", "data"}, schemeOf(value)) {
			return fmt.Errorf("%s with %s: is not supported here, only the value itself", name, schemeOf(value))
		}
	}
	var identities []string
	for _, i := range []struct{ name, value string }{
		{"user", c.user}, {"creds", c.creds}, {"nkey", c.nkey}, {"user_jwt", c.jwt},
	} {
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
		opts = append(opts, nats.UserJWT(func() (string, error) {
			return c.jwt, nil
		}, func([]byte) ([]byte, error) { return nil, nil }))
	}
	if c.tlsFirst {
		opts = append(opts, nats.TLSHandshakeFirst())
	}
	return opts
}

// checkJetStream checks a domain and a prefix. The keys name the settings or the fields of a context.
func checkJetStream(domainKey, domain, prefixKey, prefix string) error {
	if domain != "" && prefix != "" {
		return &setting.Error{Key: domainKey, Value: domain,
			MustBe: fmt.Sprintf("unset if %s=%q is set: a domain is the prefix $JS.<domain>.API", prefixKey, prefix)}
	}
	if domain != "" && (!plainTokens(domain) || strings.Contains(domain, ".")) {
		return &setting.Error{Key: domainKey, Value: domain, MustBe: "the name of a JetStream domain: visible " +
			"characters without dots and wildcards, such as leaf"}
	}
	if prefix != "" && !plainTokens(strings.TrimSuffix(prefix, ".")) {
		return &setting.Error{Key: prefixKey, Value: prefix, MustBe: "a subject without wildcards, such as " +
			"JS.counts.API"}
	}
	return nil
}

func checkInboxPrefix(key, prefix string) error {
	if prefix != "" && !plainTokens(prefix) {
		return &setting.Error{Key: key, Value: prefix, MustBe: "a subject without wildcards, such as _INBOX_tallyroll"}
	}
	return nil
}

// plainTokens reports whether a text is a subject without wildcards.
func plainTokens(subject string) bool {
	for token := range strings.SplitSeq(subject, ".") {
		if token == "" || strings.ContainsFunc(token, func(r rune) bool {
			return r <= ' ' || r == '*' || r == '>' || r == 0x7f
		}) {
			return false
		}
	}
	return true
}
