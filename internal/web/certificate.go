package web

import (
	"crypto/tls"

	"github.com/rs/zerolog"

	"tallyroll/internal/platform/setting"
)

// ServerFiles are the settings of a server's TLS.
type ServerFiles struct {
	Cert, Key setting.Path
	ClientCA  setting.Path // of the authorities that sign the certificates of clients; empty: clients need none
}

func (f ServerFiles) Validate() error {
	if err := setting.CheckKeyPair(f.Cert, f.Key); err != nil || f.ClientCA.File == "" {
		return err
	}
	if f.Cert.File == "" {
		return &setting.Error{Key: f.ClientCA.Key, Value: f.ClientCA.File, MustBe: "set together with " + f.Cert.Key}
	}
	_, err := f.ClientCA.Pool()
	return err
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
	config.ClientCAs, err = f.ClientCA.PoolOf(texts[2])
	return config, err
}

// Certificate is a server's certificate, its key, and the authorities of its clients. They are reread when
// the files change, so a renewal needs no restart.
type Certificate struct{ file *setting.File[*tls.Config] }

// OpenCertificate reads the files, which have been validated. It returns nil if no certificate is set.
func OpenCertificate(from ServerFiles, files *setting.Files) (*Certificate, error) {
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
