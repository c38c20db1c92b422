package boot

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
)

// RedisTLS says how the client checks the servers of a rediss URL, and which certificate it shows them.
type RedisTLS struct {
	CA   string `env:"REDIS_CA" help:"with rediss: a PEM file of the authorities that sign the servers' certificates (default: the system's)"`
	Cert string `env:"REDIS_CERT" help:"this client's certificate (PEM), with REDIS_KEY: redis-server asks for one unless it has tls-auth-clients no"`
	Key  string `env:"REDIS_KEY" help:"the private key of REDIS_CERT (PEM)"`

	roots *x509.CertPool // of CA; nil for the system's
}

// Validate reads the files.
func (r *Redis) Validate() error {
	t := &r.TLS
	for _, file := range []struct{ key, path string }{{"REDIS_CA", t.CA}, {"REDIS_CERT", t.Cert}, {"REDIS_KEY", t.Key}} {
		if file.path != "" && r.URL.options.TLSConfig == nil {
			return &SettingError{Key: file.key, Value: file.path, Allowed: "a PEM file if REDIS_URL begins with rediss, and nothing if it does not: the connection would not be encrypted"}
		}
	}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return &SettingError{Key: "REDIS_CA", Value: t.CA, Allowed: fmt.Sprintf("a PEM file that can be read (%v)", err)}
		}
		t.roots = x509.NewCertPool()
		if !t.roots.AppendCertsFromPEM(pem) {
			return &SettingError{Key: "REDIS_CA", Value: t.CA, Allowed: "a PEM file with a certificate: there is none in it"}
		}
	}
	return CheckKeyPair(PEMFile{"REDIS_CERT", t.Cert}, PEMFile{"REDIS_KEY", t.Key})
}

// apply returns a URL's configuration with the files; nil without TLS.
func (t RedisTLS) apply(config *tls.Config) *tls.Config {
	if config == nil {
		return nil
	}
	config = config.Clone()
	config.RootCAs = t.roots
	if t.Cert != "" {
		// Read for every connection, so that a certificate renewed in its file is used from then on.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
			return &pair, err
		}
	}
	return config
}

// refusedCertificate returns an error that says whose certificate was refused, by this program or by
// the other end (Redis or NATS). It returns nil if err is about something else.
func refusedCertificate(err error, server string) error {
	prefix := strings.ToUpper(server)
	var theirs *tls.CertificateVerificationError
	switch {
	case errors.As(err, &theirs):
		return UsageError{fmt.Errorf("the certificate of %s is not trusted: %w: set %s_CA to the authority that signed it, for the host in %s_URL", server, err, prefix, prefix)}
	case strings.Contains(err.Error(), "remote error: tls:") && strings.Contains(err.Error(), "certificate"): // an alert; its type is not exported
		return UsageError{fmt.Errorf("%s refused the client certificate: %w: set %s_CERT and %s_KEY to one that it trusts", server, err, prefix, prefix)}
	}
	return nil
}
