package boot

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
)

// NATS settings.
type NATS struct {
	URL string `env:"NATS_URL" envDefault:"nats://127.0.0.1:4222" help:"NATS servers, comma-separated"`
	NATSAccess
}

// NATSAccess is how a program is let in.
type NATSAccess struct {
	Creds    string `env:"NATS_CREDS" help:"a credentials file (JWT and key)"`
	User     string `env:"NATS_USER" help:"user name"`
	Password string `env:"NATS_PASSWORD" secret:"true" help:"password of NATS_USER"`
	Token    string `env:"NATS_TOKEN" secret:"true" help:"a token in place of user and password"`
	CA       string `env:"NATS_CA" help:"a PEM file of the authorities that sign the servers' certificates"`
	Cert     string `env:"NATS_CERT" help:"this client's certificate (PEM), with NATS_KEY"`
	Key      string `env:"NATS_KEY" help:"the private key of NATS_CERT (PEM)"`
}

// Options are the connection's options: it reconnects for ever, and says in
// the log when the servers are lost and back.
func (n NATS) Options(name string, log zerolog.Logger) ([]nats.Option, error) {
	opts := []nats.Option{
		nats.Name(name),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(250*time.Millisecond, time.Second),
		// A server that hangs, or that the network has swallowed, is left after about 12
		// seconds; the library's own default takes 6 minutes.
		nats.PingInterval(4 * time.Second), nats.MaxPingsOutstanding(2),
		nats.IgnoreAuthErrorAbort(), // a rotated credential must not end a worker
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				log.Warn().Err(err).Msg("NATS lost")
			}
		}),
		nats.ReconnectHandler(func(c *nats.Conn) { log.Info().Str("server", c.ConnectedUrlRedacted()).Msg("NATS back") }),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			log.Warn().Err(err).Msg("NATS reports an error")
		}),
	}
	if n.Creds != "" {
		opts = append(opts, nats.UserCredentials(n.Creds))
	}
	if n.User != "" {
		opts = append(opts, nats.UserInfo(n.User, n.Password))
	}
	if n.Token != "" {
		opts = append(opts, nats.Token(n.Token))
	}
	if n.CA != "" {
		opts = append(opts, nats.RootCAs(n.CA))
	}
	switch {
	case n.Cert != "" && n.Key != "":
		opts = append(opts, nats.ClientCert(n.Cert, n.Key))
	case n.Cert != "":
		return nil, &SettingError{Key: "NATS_CERT", Value: n.Cert, Allowed: "a PEM file together with NATS_KEY"}
	case n.Key != "":
		return nil, &SettingError{Key: "NATS_KEY", Value: n.Key, Allowed: "a PEM file together with NATS_CERT"}
	}
	return opts, nil
}

// Connect connects to NATS, waiting for the servers for as long as ctx lives.
// Refused credentials are an error at once.
func (n NATS) Connect(ctx context.Context, name string, log zerolog.Logger, more ...nats.Option) (*nats.Conn, error) {
	opts, err := n.Options(name, log)
	if err != nil {
		return nil, err
	}
	opts = append(opts, more...)
	var conn *nats.Conn
	err = WaitFor(ctx, log, "NATS", func(context.Context) error {
		conn, err = nats.Connect(n.URL, opts...)
		switch {
		case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired):
			return UsageError{fmt.Errorf("NATS refused the credentials: %w: set NATS_CREDS, NATS_USER and NATS_PASSWORD, or NATS_TOKEN", err)}
		case err != nil && !reachable(err):
			return &SettingError{Key: "NATS_URL", Allowed: fmt.Sprintf("comma-separated servers such as nats://host:4222 (%v)", err)}
		}
		return err
	})
	return conn, err
}

// reachable tells an error of the network, which waiting may mend, from a bad address or file.
func reachable(err error) bool {
	var net interface{ Timeout() bool }
	return errors.Is(err, nats.ErrNoServers) || errors.Is(err, nats.ErrTimeout) || errors.As(err, &net)
}

// waitRetry is the pause between attempts to reach a server, and waitSay how
// often the wait is logged.
const (
	waitRetry = 250 * time.Millisecond
	waitSay   = 10 * time.Second
)

// WaitFor calls try until it succeeds, ctx ends, or it fails in a way that
// waiting cannot mend (a SettingError or UsageError). It logs what it waits for.
func WaitFor(ctx context.Context, log zerolog.Logger, what string, try func(context.Context) error) error {
	var said time.Time
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		if exitCode(err) == ExitUsage {
			return err
		}
		if time.Since(said) > waitSay {
			said = time.Now()
			log.Warn().Err(err).Msg("waiting for " + what)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(waitRetry):
		}
	}
}
