// Package natsconn connects to NATS as its settings or a context of the nats command say, and finds the JetStream of a
// domain or of another account.
package natsconn

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"tallyroll/internal/retry"
	"tallyroll/internal/setting"
)

// Settings are those of the connection to NATS.
type Settings struct {
	URL      Servers            `env:"NATS_URL" envDefault:"nats://127.0.0.1:4222" secret:"true" help:"NATS servers, comma-separated: host:port, nats://[user:password@]host:port, tls://…, ws://…, wss://…"`
	URLGiven bool               `given:"NATS_URL"`
	URLFile  setting.SecretFile `file:"NATS_URL"` // the users in it are those of the next connection, its servers those of the start
	Access
}

// Access holds how a program authenticates itself, which servers it trusts, and where JetStream is.
type Access struct {
	Context     string `env:"NATS_CONTEXT" help:"a context of the nats command: its name, or a path with a slash to its file; NATS_* settings win over it"`
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

	context natsContext // that Context names
}

// Validate reads the context and the files.
func (n *Access) Validate() error {
	if err := setting.BothOrNeither(setting.Path{Key: "NATS_CERT", File: n.Cert}, setting.Path{Key: "NATS_KEY", File: n.Key}); err != nil {
		return err
	}
	if n.Creds != "" && n.NKey != "" {
		return &setting.Error{Key: "NATS_NKEY", Value: n.NKey, Allowed: "a file without NATS_CREDS beside it: only one of them can say who connects"}
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

// complete fills from the context what no setting gives. identified: NATS_URL has credentials. Credentials
// come as a whole from the settings or from the context.
func (n Access) complete(identified bool) Access {
	c := n.context
	if n.identified() || identified {
		c = c.anonymous()
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

// identified reports whether a setting has credentials.
func (n Access) identified() bool {
	return n.Creds != "" || n.NKey != "" || n.User != "" || n.Token != ""
}

// complete fills from the context what no setting gives. The default of NATS_URL is not a setting.
func (n Settings) complete() Settings {
	if n.URLGiven || !n.context.servers.Set() {
		n.Access = n.Access.complete(n.URLGiven && n.URL.identified())
		return n
	}
	n.URL = n.context.servers
	if n.identified() {
		n.URL = n.URL.anonymous()
	}
	n.Access = n.Access.complete(false)
	return n
}

// options returns the connection's options: it reconnects for ever, and logs when it is lost and back.
func (n Settings) options(name string, log zerolog.Logger) []nats.Option {
	opts := []nats.Option{
		nats.Name(name),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(250*time.Millisecond, time.Second),
		// The client leaves a server that hangs or is unreachable after some 12 seconds; by default, 6
		// minutes.
		nats.PingInterval(4 * time.Second), nats.MaxPingsOutstanding(2),
		nats.IgnoreAuthErrorAbort(), // a rotated credential must not end a worker
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				log.Warn().Err(err).Msg("NATS lost")
			}
		}),
		nats.ReconnectHandler(func(c *nats.Conn) { log.Info().Str("server", ServerOf(c)).Msg("NATS back") }),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			log.Warn().Err(err).Msg("NATS reports an error")
		}),
	}
	if n.Creds != "" {
		creds := setting.NewReloadable("NATS_CREDS", log, n.readCreds)
		var attempt *nats.Options // of the connection under way: its JWT and its signature belong together
		opts = append(opts, nats.UserJWT(func() (jwt string, err error) {
			if attempt, err = creds.Get(); err != nil {
				return "", err
			}
			return attempt.UserJWT()
		}, func(nonce []byte) ([]byte, error) { return attempt.SignatureCB(nonce) }))
	}
	if n.NKey != "" {
		opts = append(opts, func(o *nats.Options) error {
			option, err := nats.NkeyOptionFromSeed(n.NKey)
			if err != nil {
				return &setting.Error{Key: "NATS_NKEY", Value: n.NKey, Allowed: "a file with the seed of a user's NKey"}
			}
			return option(o)
		})
	}
	login := setting.NewReloadable("file of a secret of NATS", log, n.readLogin) // checked by connect
	switch {
	case n.URLFile.Set() || n.PasswordFile.Set():
		opts = append(opts, nats.UserInfoHandler(func() (user, password string) {
			now, _ := login.Get()
			return now.user, now.password
		}))
	case n.User != "":
		opts = append(opts, nats.UserInfo(n.User, n.Password))
	}
	switch {
	case n.URLFile.Set() || n.TokenFile.Set():
		opts = append(opts, nats.TokenHandler(func() string {
			now, _ := login.Get()
			return now.token
		}))
	case n.Token != "":
		opts = append(opts, nats.Token(n.Token))
	}
	if n.CA != "" {
		opts = append(opts, nats.RootCAs(n.CA))
	}
	if n.Cert != "" {
		pair := setting.NewReloadable("NATS_CERT and NATS_KEY", log, func() (tls.Certificate, error) { return tls.LoadX509KeyPair(n.Cert, n.Key) })
		opts = append(opts, nats.ClientCert(n.Cert, n.Key), func(o *nats.Options) error {
			o.TLSCertCB = pair.Get
			return nil
		})
	}
	if n.InboxPrefix != "" {
		opts = append(opts, nats.CustomInboxPrefix(n.InboxPrefix))
	}
	return append(opts, n.context.options()...)
}

type natsLogin struct{ user, password, token string }

// readLogin returns the credentials that the files have now. As in the library, those in NATS_URL win.
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

// ServerOf returns host:port of the connected server. The library's ConnectedUrlRedacted does not remove a
// token: in nats://token@host, it takes it for a user name.
func ServerOf(c *nats.Conn) string {
	u, err := url.Parse(c.ConnectedUrl())
	if err != nil {
		return ""
	}
	return u.Host
}

// Connect connects to NATS. It waits for the servers for as long as ctx lives, but fails at once if waiting
// cannot help, such as for refused credentials. The settings must have been validated.
func (n Settings) Connect(ctx context.Context, name string, log zerolog.Logger, more ...nats.Option) (*nats.Conn, error) {
	return n.connect(ctx, name, log, retry.LogEvery, "", more)
}

// ConnectLater is Connect for a program that works without NATS: it logs once that it waits, and what is
// missing.
func (n Settings) ConnectLater(ctx context.Context, name string, log zerolog.Logger, missing string, more ...nats.Option) (*nats.Conn, error) {
	return n.connect(ctx, name, log, math.MaxInt64, ": "+missing, more)
}

// Chosen reports whether a setting says where NATS is or has credentials.
func (n Settings) Chosen() bool { return n.URLGiven || n.Context != "" || n.identified() }

func (n Settings) connect(ctx context.Context, name string, log zerolog.Logger, sayEvery time.Duration, missing string, more []nats.Option) (conn *nats.Conn, err error) {
	n = n.complete()
	servers := n.URL
	if _, err := n.readLogin(); err != nil {
		return nil, err
	}
	if n.URLFile.Set() {
		servers = servers.anonymous() // a user in an address would win over the file's later content
	}
	opts := append(n.options(name, log), more...)
	err = retry.UntilLogging(ctx, log, "NATS at "+n.URL.String()+missing, sayEvery, func(context.Context) error {
		conn, err = nats.Connect(*servers.text, opts...)
		if err == nil {
			return nil
		}
		return n.refused(err)
	})
	return conn, err
}

// refused turns a permanent connection error into one that names the setting to change.
func (n Settings) refused(err error) error {
	if refused := setting.RefusedCertificate(err, "NATS"); refused != nil {
		return refused
	}
	var refusal *setting.Error
	switch {
	case errors.As(err, &refusal):
		return err
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired):
		return setting.UsageError{Err: fmt.Errorf("NATS at %s refused the credentials: %w: set NATS_CREDS, NATS_NKEY, NATS_USER and NATS_PASSWORD, NATS_TOKEN, or a NATS_CONTEXT with one of these, or write nats://user:password@host in NATS_URL", n.URL, err)}
	case errors.Is(err, nats.ErrNkeysNotSupported):
		return setting.UsageError{Err: fmt.Errorf("NATS at %s knows no NKeys: %w: unset NATS_NKEY, or the nkey of the context", n.URL, err)}
	case !reachable(err):
		return &setting.Error{Key: "NATS_URL", Allowed: fmt.Sprintf("%s (at %s: %v)", natsForms, n.URL, err)}
	}
	return err
}

// reachable reports whether an error is one of the network, which waiting may fix.
func reachable(err error) bool {
	var net *net.OpError
	return errors.Is(err, nats.ErrNoServers) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, io.EOF) ||
		errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &net)
}
