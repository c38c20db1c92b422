package natsconn

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/nats-io/nats.go"

	"tallyroll/internal/platform/setting"
)

// Settings are those of the connection to NATS.
type Settings struct {
	URL      Servers `env:"NATS_URL" envDefault:"nats://127.0.0.1:4222" secret:"true" help:"NATS servers, comma-separated: host:port, nats://[user:password@]host:port, tls://…, ws://…, wss://…"`
	URLGiven bool    `given:"NATS_URL"`
	// URLFile has the users of the next connection. Its servers are those of the start.
	URLFile setting.SecretFile `file:"NATS_URL"`
	Access
}

// Access holds how a program authenticates itself, which servers it trusts, and where JetStream is.
type Access struct {
	Creds       string       `env:"NATS_CREDS" help:"a credentials file (JWT and key)"`
	NKey        string       `env:"NATS_NKEY" help:"a file with the seed of an NKey"`
	User        string       `env:"NATS_USER" help:"user name"`
	Password    string       `env:"NATS_PASSWORD" secret:"true" help:"password of NATS_USER"`
	Token       string       `env:"NATS_TOKEN" secret:"true" help:"a token in place of user and password"`
	CA          string       `env:"NATS_CA" help:"a PEM file of the authorities that sign the servers' certificates"`
	Cert        setting.Path `env:"NATS_CERT" help:"this client's certificate (PEM), with NATS_KEY"`
	Key         setting.Path `env:"NATS_KEY" help:"the private key of NATS_CERT (PEM)"`
	InboxPrefix string       `env:"NATS_INBOX_PREFIX" help:"first part of the subjects on which answers come, in place of _INBOX"`
	JSDomain    string       `env:"NATS_JS_DOMAIN" help:"the JetStream domain that has the streams, such as that of a leaf node; not with NATS_JS_API_PREFIX"`
	JSAPIPrefix string       `env:"NATS_JS_API_PREFIX" help:"the prefix at which this account imports the JetStream API of another, such as JS.counts.API; not with NATS_JS_DOMAIN"`

	PasswordFile setting.SecretFile `file:"NATS_PASSWORD"`
	TokenFile    setting.SecretFile `file:"NATS_TOKEN"`
}

// Validate reads the files.
func (n *Access) Validate() error {
	if err := setting.BothOrNeither(n.Cert, n.Key); err != nil {
		return err
	}
	if n.Creds != "" && n.NKey != "" {
		return &setting.Error{Key: "NATS_NKEY", Value: n.NKey, MustBe: "unset if NATS_CREDS is set: only one of them " +
			"can be the identity"}
	}
	if err := checkJetStream(n.JSDomain, n.JSAPIPrefix); err != nil {
		return err
	}
	if err := checkInboxPrefix(n.InboxPrefix); err != nil {
		return err
	}
	return n.checkFiles()
}

// checkFiles reads the files as the library will. Every connection rereads them, so
// renewed credentials need no restart. An NKey is the identity itself, so its file must keep the same seed.
func (n Access) checkFiles() error {
	for _, file := range []struct {
		key, path, what, of string
		use                 func() error
	}{
		{"NATS_CREDS", n.Creds, "a credentials file", "a credentials file: a user's JWT and its seed", n.checkCreds},
		{"NATS_NKEY", n.NKey, "a file", "a file with the seed of a user's NKey", n.checkNKey},
		{"NATS_CA", n.CA, "a PEM file", "a PEM file of certificates", func() error {
			return nats.RootCAs(n.CA)(&nats.Options{})
		}},
		{"NATS_KEY", n.Key.File, "a PEM file", "", func() error { return nil }}, // read with CERT
		{"NATS_CERT", n.Cert.File, "a PEM file", "a PEM certificate that belongs to the key in NATS_KEY", func() error {
			return nats.ClientCert(n.Cert.File, n.Key.File)(&nats.Options{})
		}},
	} {
		if file.path == "" {
			continue
		}
		if err := readable(file.path); err != nil {
			return &setting.Error{Key: file.key, Value: file.path,
				MustBe: fmt.Sprintf("%s that can be read (%v)", file.what, err)}
		}
		if err := file.use(); err != nil {
			return &setting.Error{Key: file.key, Value: file.path, MustBe: fmt.Sprintf("%s (%v)", file.of, err)}
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

// hasCredentials reports whether a setting has credentials.
func (n Access) hasCredentials() bool {
	return n.Creds != "" || n.NKey != "" || n.User != "" || n.Token != ""
}

// Chosen reports whether a setting has the address of NATS or credentials.
func (n Settings) Chosen() bool { return n.URLGiven || n.hasCredentials() }

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

// checkJetStream checks a domain and a prefix.
func checkJetStream(domain, prefix string) error {
	if domain != "" && prefix != "" {
		return &setting.Error{Key: "NATS_JS_DOMAIN", Value: domain,
			MustBe: fmt.Sprintf("unset if NATS_JS_API_PREFIX=%q is set: a domain is the prefix $JS.<domain>.API",
				prefix)}
	}
	if domain != "" && (!plainTokens(domain) || strings.Contains(domain, ".")) {
		return &setting.Error{Key: "NATS_JS_DOMAIN", Value: domain, MustBe: "the name of a JetStream domain: visible " +
			"characters without dots and wildcards, such as leaf"}
	}
	if prefix != "" && !plainTokens(strings.TrimSuffix(prefix, ".")) {
		return &setting.Error{Key: "NATS_JS_API_PREFIX", Value: prefix,
			MustBe: "a subject without wildcards, such as JS.counts.API"}
	}
	return nil
}

func checkInboxPrefix(prefix string) error {
	if prefix != "" && !plainTokens(prefix) {
		return &setting.Error{Key: "NATS_INBOX_PREFIX", Value: prefix, MustBe: "a subject without wildcards, such as " +
			"_INBOX_tallyroll"}
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
