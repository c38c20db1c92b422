package web

import (
	"crypto/tls"

	"github.com/rs/zerolog"

	"tallyroll/internal/platform/setting"
)

// TLS has the files of a server's TLS, for a field with an envPrefix.
type TLS struct {
	Cert     setting.Path `env:"TLS_CERT" help:"a certificate file (PEM, chain included): serve HTTPS, with {}TLS_KEY; both files are read again when they change"`
	Key      setting.Path `env:"TLS_KEY" help:"the private key of {}TLS_CERT (PEM)"`
	ClientCA setting.Path `env:"TLS_CLIENT_CA" help:"a file of authorities (PEM): clients need a certificate that one of them has signed, also for /healthz; needs {}TLS_CERT; read again when it changes"`
}

func (f TLS) Validate() error {
	if err := setting.CheckKeyPair(f.Cert, f.Key); err != nil || f.ClientCA.File == "" {
		return err
	}
	if f.Cert.File == "" {
		return &setting.Error{Key: f.ClientCA.Key, Value: f.ClientCA.File, MustBe: "set together with " + f.Cert.Key}
	}
	_, err := f.ClientCA.Pool()
	return err
}

func (f TLS) parse(texts [][]byte) (*tls.Config, error) {
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
	config.ClientCAs, err = f.ClientCA.PoolOf(texts[2])
	return config, err
}

// Certificate is a server's certificate, its key, and the authorities of its clients. They are reread when
// the files change, so a renewal needs no restart.
type Certificate struct{ file *setting.File[*tls.Config] }

// openCertificate reads the files, which have been validated. It returns nil if no certificate is set.
func openCertificate(from TLS, files *setting.Files) (*Certificate, error) {
	if from.Cert.File == "" {
		return nil, nil
	}
	settings := []setting.Path{from.Cert, from.Key}
	if from.ClientCA.File != "" {
		settings = append(settings, from.ClientCA)
	}
	file, err := setting.OpenAll(files, "certificate", settings, from.parse,
		func(config *tls.Config, line *zerolog.Event) {
			line.Time("until", config.Certificates[0].Leaf.NotAfter)
			files.UseCertificate(from.Cert.Key, config.Certificates[0])
		})
	if err != nil {
		return nil, err
	}
	return &Certificate{file}, nil
}

// TLS returns a server's configuration whose handshakes use the files as last read.
func (c *Certificate) TLS() *tls.Config {
	return &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return c.file.Load(), nil
	}}
}
