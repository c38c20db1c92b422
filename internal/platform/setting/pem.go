package setting

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// CheckKeyPair checks that a certificate and its private key match, or are both missing.
func CheckKeyPair(cert, key Path) error {
	if err := BothOrNeither(cert, key); err != nil || cert.File == "" {
		return err
	}
	if _, err := tls.LoadX509KeyPair(cert.File, key.File); err != nil {
		return &Error{Key: cert.Key, Value: cert.File,
			MustBe: fmt.Sprintf("a PEM certificate that belongs to the key in %s (%v)", key.Key, err)}
	}
	return nil
}

// certificateEnds has the time.Time at which the certificates in use end, by their settings.
var certificateEnds sync.Map

// EachCertificateEnd calls yield with each certificate in use: the setting that names it, and when it ends.
func EachCertificateEnd(yield func(key string, end time.Time)) {
	certificateEnds.Range(func(key, end any) bool {
		yield(key.(string), end.(time.Time))
		return true
	})
}

// warnBefore is how long before the end of a certificate its program begins to warn.
const warnBefore = 14 * 24 * time.Hour

// UseCertificate notes the end of a certificate that a setting names. It logs the end when it comes, and
// warnBefore it.
func UseCertificate(key string, certificate tls.Certificate, log zerolog.Logger) {
	end := certificate.Leaf.NotAfter
	if was, _ := certificateEnds.Swap(key, end); was == end {
		return
	}
	warn := func() {
		switch now, _ := certificateEnds.Load(key); {
		case now != end: // it was replaced
		case time.Now().Before(end):
			log.Warn().Str("setting", key).Time("until", end).Msg("a certificate ends soon: replace it")
		default:
			log.Error().Str("setting", key).Time("until", end).Msg("a certificate has ended: replace it")
		}
	}
	left := time.Until(end)
	if left <= warnBefore {
		warn()
	}
	for _, pause := range []time.Duration{left - warnBefore, left} {
		if pause > 0 {
			time.AfterFunc(pause, warn)
		}
	}
}

// LoadPair loads a certificate and its key, and notes the certificate's end.
func LoadPair(cert, key Path, log zerolog.Logger) (tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(cert.File, key.File)
	if err == nil {
		UseCertificate(cert.Key, pair, log)
	}
	return pair, err
}

// BothOrNeither checks that a certificate and its key are both given, or both missing.
func BothOrNeither(cert, key Path) error {
	switch {
	case cert.File != "" && key.File == "":
		return &Error{Key: cert.Key, Value: cert.File, MustBe: "set together with " + key.Key}
	case cert.File == "" && key.File != "":
		return &Error{Key: key.Key, Value: key.File, MustBe: "set together with " + cert.Key}
	}
	return nil
}

// Pool reads the certificates of authorities.
func (s Path) Pool() (*x509.CertPool, error) {
	pem, err := os.ReadFile(s.File)
	if err != nil {
		return nil, &Error{Key: s.Key, Value: s.File, MustBe: fmt.Sprintf("a PEM file that can be read (%v)", err)}
	}
	return s.PoolOf(pem)
}

// PoolOf is Pool of a content that was read.
func (s Path) PoolOf(pem []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, &Error{Key: s.Key, Value: s.File, MustBe: "a PEM file with a certificate"}
	}
	return pool, nil
}

// RefusedCertificate returns an error with whose certificate was refused, by this program or by Redis or
// NATS. It returns nil if err is about something else.
func RefusedCertificate(err error, server string) error {
	prefix := strings.ToUpper(server)
	var theirs *tls.CertificateVerificationError
	switch {
	case errors.As(err, &theirs):
		return UsageError{Err: fmt.Errorf("the certificate of %s is not trusted: %w: set %s_CA to the authority that "+
			"signed it, for the host in %s_URL", server, err, prefix, prefix)}
	// an alert; its type is not exported
	case strings.Contains(err.Error(), "remote error: tls:") && strings.Contains(err.Error(), "certificate"):
		return UsageError{Err: fmt.Errorf("%s refused the client certificate: %w: set %s_CERT and %s_KEY to one that "+
			"it trusts", server, err, prefix, prefix)}
	}
	return nil
}
