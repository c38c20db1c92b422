package boot

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"sync/atomic"

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

// ServerFiles are the settings of a server's TLS.
type ServerFiles struct {
	Cert, Key PEMFile
	ClientCA  PEMFile // of the authorities that sign the certificates of clients; empty: clients need none
}

// Validate reads the files.
func (f ServerFiles) Validate() error {
	if err := CheckKeyPair(f.Cert, f.Key); err != nil || f.ClientCA.Path == "" {
		return err
	}
	if f.Cert.Path == "" {
		return &SettingError{Key: f.ClientCA.Key, Value: f.ClientCA.Path, Allowed: "a PEM file together with " + f.Cert.Key}
	}
	_, err := f.ClientCA.pool()
	return err
}

// pool returns the certificates in the file.
func (f PEMFile) pool() (*x509.CertPool, error) {
	pem, err := os.ReadFile(f.Path)
	if err != nil {
		return nil, &SettingError{Key: f.Key, Value: f.Path, Allowed: fmt.Sprintf("a PEM file that can be read (%v)", err)}
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, &SettingError{Key: f.Key, Value: f.Path, Allowed: "a PEM file with a certificate: there is none in it"}
	}
	return pool, nil
}

// load returns what the server's handshakes need.
func (f ServerFiles) load() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(f.Cert.Path, f.Key.Path)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"}}
	if f.ClientCA.Path == "" {
		return config, nil
	}
	config.ClientAuth = tls.RequireAndVerifyClientCert
	config.SessionTicketsDisabled = true // a session of before must not outlive its authority
	config.ClientCAs, err = f.ClientCA.pool()
	return config, err
}

// Certificate is a server's certificate, its key, and the authorities of its clients. They are read again when their
// files change: whoever renews certificates replaces files and restarts nothing.
type Certificate struct {
	files    ServerFiles
	followed *Files
	log      zerolog.Logger
	reloaded func(error) // told of each attempt
	config   atomic.Pointer[tls.Config]
}

// OpenCertificate reads the files, which have been validated. It returns nil if there are none.
// watch returns what is to be told of each time that the files are read again.
func OpenCertificate(files ServerFiles, log zerolog.Logger, watch func(what string) func(error)) (*Certificate, error) {
	if files.Cert.Path == "" {
		return nil, nil
	}
	c := &Certificate{files: files, followed: NewFiles(files.Cert.Path, files.Key.Path, files.ClientCA.Path), log: log, reloaded: watch("certificate")}
	c.followed.Reading()
	config, err := files.load()
	if err != nil {
		return nil, files.Validate()
	}
	c.config.Store(config)
	return c, nil
}

// TLS is the settings of a server whose handshakes use the files as they were read last.
func (c *Certificate) TLS() *tls.Config {
	return &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.config.Load(), nil }}
}

// Follow reads the files again when they change, until ctx ends. A pair that cannot be used changes nothing.
func (c *Certificate) Follow(ctx context.Context) { c.followed.Follow(ctx, c.reload) }

func (c *Certificate) reload() {
	c.followed.Reading()
	config, err := c.files.load()
	c.reloaded(err)
	if err != nil {
		c.log.Error().Err(err).Str("certificate", c.files.Cert.Path).Str("key", c.files.Key.Path).Msg("certificate not reloaded: the one before stays in use")
		return
	}
	c.config.Store(config)
	line := c.log.Info().Str("certificate", c.files.Cert.Path)
	if leaf, err := x509.ParseCertificate(config.Certificates[0].Certificate[0]); err == nil {
		line = line.Time("until", leaf.NotAfter)
	}
	line.Msg("certificate reloaded")
}
