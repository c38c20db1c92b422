// Package natsconn connects to NATS with its settings, and finds the JetStream of another domain or account.
package natsconn

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/url"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"tallyroll/internal/platform/cause"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/platform/wait"
)

// options returns the connection's options: it reconnects for ever, and logs when it is lost and restored.
func (n Settings) options(name string, log zerolog.Logger) []nats.Option {
	opts := []nats.Option{
		nats.Name(name),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(250*time.Millisecond, time.Second),
		// The client leaves a server that hangs or is unreachable after some 12 seconds, not 6 minutes.
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
		var attempt *nats.Options // of the current attempt: its JWT and its signature belong together
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
				return &setting.Error{Key: "NATS_NKEY", Value: n.NKey, MustBe: "a file with the seed of a user's NKey"}
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
	if n.Cert.File != "" {
		pair := setting.NewReloadable("NATS_CERT and NATS_KEY", log, func() (tls.Certificate, error) {
			return setting.LoadPair(n.Cert, n.Key, log)
		})
		opts = append(opts, nats.ClientCert(n.Cert.File, n.Key.File), func(o *nats.Options) error {
			o.TLSCertCB = pair.Get
			return nil
		})
	}
	if n.InboxPrefix != "" {
		opts = append(opts, nats.CustomInboxPrefix(n.InboxPrefix))
	}
	return opts
}

// ReportUp is an option of Connect. It calls up with true when a connection begins, and with false when it is
// lost. The client leaves a server that does not answer its pings.
func ReportUp(up func(bool)) nats.Option {
	return func(o *nats.Options) error {
		lost, back := o.DisconnectedErrCB, o.ReconnectedCB
		o.ConnectedCB = func(c *nats.Conn) { up(c.IsConnected()) } // the loss may be reported before it
		o.DisconnectedErrCB = func(c *nats.Conn, err error) { up(false); lost(c, err) }
		o.ReconnectedCB = func(c *nats.Conn) { up(c.IsConnected()); back(c) }
		return nil
	}
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
func (n Settings) Connect(ctx context.Context, name string, log zerolog.Logger,
	more ...nats.Option) (*nats.Conn, error) {
	return n.connect(ctx, name, log, wait.LogEvery, "", more)
}

// ConnectLater is Connect for a program that works without NATS: it logs once that it waits, and what is
// missing meanwhile.
func (n Settings) ConnectLater(ctx context.Context, name string, log zerolog.Logger, missing string,
	more ...nats.Option) (*nats.Conn, error) {
	return n.connect(ctx, name, log, math.MaxInt64, ": "+missing, more)
}

func (n Settings) connect(ctx context.Context, name string, log zerolog.Logger, logEvery time.Duration, missing string,
	options []nats.Option) (conn *nats.Conn, err error) {
	servers := n.URL
	if _, err := n.readLogin(); err != nil {
		return nil, err
	}
	if n.URLFile.Set() {
		// a user in an address would take precedence over the file's later content
		servers = servers.withoutCredentials()
	}
	opts := append(n.options(name, log), options...)
	err = wait.UntilLogging(ctx, log, "NATS at "+n.URL.String()+missing, logEvery, func(context.Context) error {
		conn, err = nats.Connect(*servers.text, opts...)
		if err == nil {
			return nil
		}
		return n.explainRefusal(err)
	})
	return conn, err
}

// explainRefusal turns a permanent connection error into one that names the setting to change.
func (n Settings) explainRefusal(err error) error {
	if refused := setting.RefusedCertificate(err, "NATS"); refused != nil {
		return refused
	}
	var refusal *setting.Error
	var op *net.OpError
	switch {
	case errors.As(err, &refusal):
		return err
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired):
		return setting.UsageError{Err: fmt.Errorf("NATS at %s refused the credentials: %w: set NATS_CREDS, NATS_NKEY, "+
			"NATS_USER and NATS_PASSWORD, or NATS_TOKEN, or write nats://user:password@host in NATS_URL", n.URL, err)}
	case errors.Is(err, nats.ErrSecureConnWanted):
		return cause.NATSNoTLS.Of(fmt.Errorf("at %s: %w", n.URL, err))
	case errors.Is(err, io.EOF), errors.As(err, &op) && op.Op == "read" && op.Timeout():
		return cause.NATSTLS.Of(err)
	case errors.Is(err, nats.ErrNkeysNotSupported):
		return setting.UsageError{Err: fmt.Errorf("NATS at %s does not support NKeys: %w: unset NATS_NKEY", n.URL, err)}
	case !reachable(err):
		return &setting.Error{Key: "NATS_URL", MustBe: fmt.Sprintf("%s (at %s: %v)", natsForms, n.URL, err)}
	}
	return err
}

// reachable reports whether an error is one of the network, which waiting may fix.
func reachable(err error) bool {
	var net *net.OpError
	return errors.Is(err, nats.ErrNoServers) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, io.EOF) ||
		errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &net)
}
