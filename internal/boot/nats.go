package boot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
)

// NATS settings.
type NATS struct {
	URL NATSServers `env:"NATS_URL" envDefault:"nats://127.0.0.1:4222" secret:"true" help:"NATS servers, comma-separated: host:port, nats://[user:password@]host:port, tls://…, ws://…, wss://…"`
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

// Validate reads the files, as every connection does again: credentials that are
// renewed in their files are used from then on.
func (n *NATSAccess) Validate() error {
	switch {
	case n.Cert != "" && n.Key == "":
		return &SettingError{Key: "NATS_CERT", Value: n.Cert, Allowed: "a PEM file together with NATS_KEY"}
	case n.Key != "" && n.Cert == "":
		return &SettingError{Key: "NATS_KEY", Value: n.Key, Allowed: "a PEM file together with NATS_CERT"}
	}
	for _, file := range []struct{ key, path, what string }{
		{"NATS_CREDS", n.Creds, "a credentials file"}, {"NATS_CA", n.CA, "a PEM file"}, {"NATS_CERT", n.Cert, "a PEM file"}, {"NATS_KEY", n.Key, "a PEM file"},
	} {
		if file.path == "" {
			continue
		}
		if err := readable(file.path); err != nil {
			return &SettingError{Key: file.key, Value: file.path, Allowed: fmt.Sprintf("%s that can be read (%v)", file.what, err)}
		}
	}
	for _, check := range []struct {
		key, path, allowed string
		use                func() error
	}{
		{"NATS_CREDS", n.Creds, "a credentials file: a user's JWT and its seed", n.checkCreds},
		{"NATS_CA", n.CA, "a PEM file of certificates", func() error { return nats.RootCAs(n.CA)(&nats.Options{}) }},
		{"NATS_CERT", n.Cert, "a PEM certificate that belongs to the key in NATS_KEY", func() error { return nats.ClientCert(n.Cert, n.Key)(&nats.Options{}) }},
	} {
		if check.path == "" {
			continue
		}
		if err := check.use(); err != nil {
			return &SettingError{Key: check.key, Value: check.path, Allowed: fmt.Sprintf("%s (%v)", check.allowed, err)}
		}
	}
	return nil
}

// checkCreds reads the file as the library will for a connection.
func (n *NATSAccess) checkCreds() error {
	var o nats.Options
	if err := nats.UserCredentials(n.Creds)(&o); err != nil {
		return err
	}
	if _, err := o.UserJWT(); err != nil {
		return err
	}
	_, err := o.SignatureCB(nil)
	return err
}

// readable opens a file: a directory and a file of somebody else's are no better than none.
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

// options are the connection's options: it reconnects for ever, and says in
// the log when the servers are lost and back.
func (n NATS) options(name string, log zerolog.Logger) []nats.Option {
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
		nats.ReconnectHandler(func(c *nats.Conn) { log.Info().Str("server", NATSServer(c)).Msg("NATS back") }),
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
	if n.Cert != "" {
		opts = append(opts, nats.ClientCert(n.Cert, n.Key))
	}
	return opts
}

// NATSServer is host:port of the server that a connection is to. The library's own
// ConnectedUrlRedacted leaves a token in: in nats://token@host it is the user's name.
func NATSServer(c *nats.Conn) string {
	u, err := url.Parse(c.ConnectedUrl())
	if err != nil {
		return ""
	}
	return u.Host
}

// Connect connects to NATS, waiting for the servers for as long as ctx lives.
// What waiting cannot mend, such as refused credentials, is an error at once.
// Settings must have been validated.
func (n NATS) Connect(ctx context.Context, name string, log zerolog.Logger, more ...nats.Option) (conn *nats.Conn, err error) {
	opts := append(n.options(name, log), more...)
	err = WaitFor(ctx, log, "NATS at "+n.URL.String(), func(context.Context) error {
		conn, err = nats.Connect(*n.URL.text, opts...)
		if err == nil {
			return nil
		}
		return n.refused(err)
	})
	return conn, err
}

// refused turns an error of a connection that waiting cannot mend into one that
// says which setting to change.
func (n NATS) refused(err error) error {
	if refused := refusedCertificate(err, "NATS"); refused != nil {
		return refused
	}
	switch {
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired):
		return UsageError{fmt.Errorf("NATS at %s refused the credentials: %w: set NATS_CREDS, NATS_USER and NATS_PASSWORD, or NATS_TOKEN, or write nats://user:password@host in NATS_URL", n.URL, err)}
	case !reachable(err):
		return &SettingError{Key: "NATS_URL", Allowed: fmt.Sprintf("%s (at %s: %v)", natsForms, n.URL, err)}
	}
	return err
}

// reachable tells an error of the network, which waiting may mend, from any other.
func reachable(err error) bool {
	var net *net.OpError
	return errors.Is(err, nats.ErrNoServers) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, io.EOF) ||
		errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &net)
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
