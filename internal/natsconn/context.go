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
)

// A context is a JSON file of the nats command with servers and credentials. The available libraries for it
// connect by themselves, ignore unknown fields, or bring a table printer and an expression language along.

type natsContext struct {
	servers Servers // not set if the context names none

	user, password, token, creds, nkey string
	jwt, seed                          string
	cert, key, ca                      string
	tlsFirst                           bool
	inboxPrefix, jsDomain, jsAPIPrefix string
}

// contextNotes are the fields of a context that change neither servers nor credentials. Without
// jetstream_event_prefix, announcements of streams may not arrive, which costs a second.
var contextNotes = []string{"name", "description", "color_scheme", "jetstream_event_prefix"}

var contextOthers = []string{"nsc", "socks_proxy", "windows_ca_certs_match", "windows_cert_match", "windows_cert_match_by", "windows_cert_store"}

const contextForms = "the name of a context of the nats command, or a path with a slash to its file"

// readContext reads the context that NATS_CONTEXT names, which may be a secret. Errors quote only known names
// and paths.
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
				return natsContext{}, fmt.Errorf("it has a field that is not known here: supported are %s", strings.Join(append(slices.Sorted(maps.Keys(texts)), "tls_first"), ", ")) // its name may be a secret in the wrong place
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
	// The nats command looks these values up elsewhere if they have such a form. As they are, they would be
	// refused.
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
		return fmt.Errorf("only one of %s can say who connects", strings.Join(identities, " and "))
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

// schemeOf is the scheme of a reference. A letter alone is a drive.
func schemeOf(ref string) string {
	u, err := url.Parse(ref)
	if err != nil || len(u.Scheme) < 2 {
		return ""
	}
	return u.Scheme
}

func (c natsContext) anonymous() natsContext {
	c.user, c.password, c.token, c.creds, c.nkey, c.jwt, c.seed = "", "", "", "", "", "", ""
	if c.servers.Set() {
		c.servers = c.servers.anonymous()
	}
	return c
}

// options are the connection's options that have no setting.
func (c natsContext) options() []nats.Option {
	var opts []nats.Option
	switch {
	case c.jwt != "" && c.seed != "":
		opts = append(opts, nats.UserJWTAndSeed(c.jwt, c.seed))
	case c.jwt != "": // a bearer's, which needs no signature
		opts = append(opts, nats.UserJWT(func() (string, error) { return c.jwt, nil }, func([]byte) ([]byte, error) { return nil, nil }))
	}
	if c.tlsFirst {
		opts = append(opts, nats.TLSHandshakeFirst())
	}
	return opts
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
		{"CA", n.CA, "a PEM file", "a PEM file of certificates", func() error { return nats.RootCAs(n.CA)(&nats.Options{}) }},
		{"KEY", n.Key, "a PEM file", "", func() error { return nil }}, // read with CERT
		{"CERT", n.Cert, "a PEM file", "a PEM certificate that belongs to the key in NATS_KEY", func() error { return nats.ClientCert(n.Cert, n.Key)(&nats.Options{}) }},
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

// checkNKey reads the seed. The library's error for other text says only that there is none.
func (n Access) checkNKey() error {
	option, err := nats.NkeyOptionFromSeed(n.NKey)
	if err != nil {
		return errors.New("it holds no such seed")
	}
	return option(&nats.Options{})
}

// readable opens a file, because a directory or a file without read permission is as bad as none.
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
