package natsconn

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/nats-io/nats.go"

	"tallyroll/internal/setting"
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
	if err := setting.BothOrNeither(setting.Path{Key: "NATS_CERT", File: n.Cert}, setting.Path{Key: "NATS_KEY", File: n.Key}); err != nil {
		return err
	}
	if n.Creds != "" && n.NKey != "" {
		return &setting.Error{Key: "NATS_NKEY", Value: n.NKey, Allowed: "a file, if NATS_CREDS is not set: only one of them can be the identity"}
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
			return &setting.Error{Key: "NATS_CONTEXT", Value: n.Context, Allowed: err.Error()}
		}
		n.context = c
	}
	own := map[string]string{"CREDS": n.Creds, "NKEY": n.NKey, "CA": n.CA, "CERT": n.Cert, "KEY": n.Key}
	return n.complete(false).checkFiles(func(field, path, allowed string) error {
		if own[field] != "" {
			return &setting.Error{Key: "NATS_" + field, Value: path, Allowed: allowed}
		}
		allowed = strings.ReplaceAll(allowed, "NATS_KEY", "key")
		return &setting.Error{Key: "NATS_CONTEXT", Value: n.Context, Allowed: fmt.Sprintf("a context whose %s is %s", strings.ToLower(field), allowed)}
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

// checkNKey reads the seed. The library's error for other text is not specific.
func (n Access) checkNKey() error {
	option, err := nats.NkeyOptionFromSeed(n.NKey)
	if err != nil {
		return errors.New("it has no such seed")
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
