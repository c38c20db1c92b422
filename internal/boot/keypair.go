package boot

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/rs/zerolog"
)

// CheckKeyPair checks that a certificate and its private key match, or are both missing.
func CheckKeyPair(cert, key SettingFile) error {
	if err := bothOrNeither(cert, key); err != nil || cert.Path == "" {
		return err
	}
	if _, err := tls.LoadX509KeyPair(cert.Path, key.Path); err != nil {
		return &SettingError{Key: cert.Key, Value: cert.Path, Allowed: fmt.Sprintf("a PEM certificate that belongs to the key in %s (%v)", key.Key, err)}
	}
	return nil
}

func bothOrNeither(cert, key SettingFile) error {
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
	Cert, Key SettingFile
	ClientCA  SettingFile // of the authorities that sign the certificates of clients; empty: clients need none
}

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

func (s SettingFile) pool() (*x509.CertPool, error) {
	pem, err := os.ReadFile(s.Path)
	if err != nil {
		return nil, &SettingError{Key: s.Key, Value: s.Path, Allowed: fmt.Sprintf("a PEM file that can be read (%v)", err)}
	}
	return s.poolOf(pem)
}

func (s SettingFile) poolOf(pem []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, &SettingError{Key: s.Key, Value: s.Path, Allowed: "a PEM file with a certificate: there is none in it"}
	}
	return pool, nil
}

func (f ServerFiles) parse(texts [][]byte) (*tls.Config, error) {
	pair, err := tls.X509KeyPair(texts[0], texts[1])
	if err != nil {
		return nil, f.Cert.Mistake(err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"}}
	if len(texts) == 2 {
		return config, nil
	}
	config.ClientAuth = tls.RequireAndVerifyClientCert
	config.SessionTicketsDisabled = true // an earlier session must not outlive its authority
	config.ClientCAs, err = f.ClientCA.poolOf(texts[2])
	return config, err
}

// Certificate is a server's certificate, its key, and the authorities of its clients. They are reread when
// the files change, so a renewal needs no restart.
type Certificate struct{ file *File[*tls.Config] }

// OpenCertificate reads the files, which have been validated. It returns nil if there are none.
func OpenCertificate(from ServerFiles, files *Files) (*Certificate, error) {
	if from.Cert.Path == "" {
		return nil, nil
	}
	settings := []SettingFile{from.Cert, from.Key}
	if from.ClientCA.Path != "" {
		settings = append(settings, from.ClientCA)
	}
	file, err := openAll(files, "certificate", settings, from.parse, func(config *tls.Config, line *zerolog.Event) {
		line.Time("until", config.Certificates[0].Leaf.NotAfter)
	})
	if err != nil {
		return nil, err
	}
	return &Certificate{file}, nil
}

// TLS returns a server's configuration whose handshakes use the files as last read.
func (c *Certificate) TLS() *tls.Config {
	return &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.file.Load(), nil }}
}
