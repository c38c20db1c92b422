package boot

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

// PEMFile is a setting that names a file.
type PEMFile struct{ Key, Path string }

// CheckKeyPair checks a certificate and its private key: both or neither must be
// given, and they must belong together.
func CheckKeyPair(cert, key PEMFile) error {
	if err := bothOrNeither(cert, key); err != nil || cert.Path == "" {
		return err
	}
	if _, err := tls.LoadX509KeyPair(cert.Path, key.Path); err != nil {
		return &SettingError{Key: cert.Key, Value: cert.Path, Allowed: fmt.Sprintf("a PEM certificate that belongs to the key in %s (%v)", key.Key, err)}
	}
	return nil
}

func bothOrNeither(cert, key PEMFile) error {
	switch {
	case cert.Path != "" && key.Path == "":
		return &SettingError{Key: cert.Key, Value: cert.Path, Allowed: "a PEM file together with " + key.Key}
	case cert.Path == "" && key.Path != "":
		return &SettingError{Key: key.Key, Value: key.Path, Allowed: "a PEM file together with " + cert.Key}
	}
	return nil
}

// Certificate is a server's certificate and key, which are read again when their files change: whoever renews
// certificates replaces files and restarts nothing.
type Certificate struct {
	cert, key string
	log       zerolog.Logger
	reloaded  func(error) // told of each attempt
	pair      atomic.Pointer[tls.Certificate]

	// Of the goroutine in run:
	read, seen filesState // of the pair, and at the last look
	failure    string     // of the last attempt, so that it is logged once
}

// filesState identifies two files, so that a change of either is seen.
type filesState [2]os.FileInfo

func (a filesState) same(b filesState) bool {
	for i := range a {
		if a[i] == nil || b[i] == nil || !os.SameFile(a[i], b[i]) || !a[i].ModTime().Equal(b[i].ModTime()) || a[i].Size() != b[i].Size() {
			return false
		}
	}
	return true
}

// OpenCertificate reads a certificate and its key, which CheckKeyPair has checked. It returns nil if there is none.
// watch returns what is to be told of each time that the files are read again.
func OpenCertificate(cert, key PEMFile, log zerolog.Logger, watch func(what string) func(error)) (*Certificate, error) {
	if cert.Path == "" {
		return nil, nil
	}
	c := &Certificate{cert: cert.Path, key: key.Path, log: log, reloaded: watch("certificate")}
	c.read = c.look() // before the pair: a change in between is seen later
	c.seen = c.read
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return nil, CheckKeyPair(cert, key)
	}
	c.pair.Store(&pair)
	return c, nil
}

func (c *Certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.pair.Load(), nil }

func (c *Certificate) look() (out filesState) {
	for i, path := range []string{c.cert, c.key} {
		out[i], _ = os.Stat(path) // a file that is gone differs from all others
	}
	return out
}

// certificateEvery is the pause between two looks at the files.
const certificateEvery = time.Second

// run looks at the files until ctx ends. It reads them once they have not changed between two looks, because one of
// them is always replaced before the other. A pair that cannot be used changes nothing.
func (c *Certificate) run(ctx context.Context) {
	ticker := time.NewTicker(certificateEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			c.check()
		}
	}
}

func (c *Certificate) check() {
	now := c.look()
	still := now.same(c.seen) || now[0] == nil || now[1] == nil
	c.seen = now
	if !still || now.same(c.read) && c.failure == "" {
		return
	}
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		if err.Error() != c.failure { // it is read again every second
			c.failure = err.Error()
			c.reloaded(err)
			c.log.Error().Err(err).Str("certificate", c.cert).Str("key", c.key).Msg("certificate not reloaded: the one before stays in use")
		}
		return
	}
	c.read, c.failure = now, ""
	c.pair.Store(&pair)
	c.reloaded(nil)
	line := c.log.Info().Str("certificate", c.cert)
	if leaf, err := x509.ParseCertificate(pair.Certificate[0]); err == nil {
		line = line.Time("until", leaf.NotAfter)
	}
	line.Msg("certificate reloaded")
}
