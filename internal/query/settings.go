package query

import (
	"crypto/tls"
	"fmt"
	"net"
	"strconv"

	"tallyroll/internal/boot"
	"tallyroll/internal/window"
)

// Settings of the service; INTERFACE is their tags, which --help prints.
type Settings struct {
	Redis boot.Redis
	Log   boot.Log

	NATSURL boot.NATSServers `env:"NATS_URL" secret:"true" help:"NATS servers as for ingest, comma-separated: answer requests there, too; not by default"`
	NATS    boot.NATSAccess

	Addr    string  `env:"QUERY_ADDR" envDefault:"127.0.0.1:8080" help:"where HTTP listens, host:port"`
	Tokens  Tokens  `env:"QUERY_TOKENS" secret:"true" help:"bearer tokens, comma-separated; where set, every /v1 call needs one"`
	Origins Origins `env:"QUERY_CORS_ORIGINS" help:"origins whose pages may ask from a browser: * or comma-separated, such as https://stats.example.com; none by default"`
	TLSCert string  `env:"QUERY_TLS_CERT" help:"a certificate file (PEM, chain included): serve HTTPS, with QUERY_TLS_KEY"`
	TLSKey  string  `env:"QUERY_TLS_KEY" help:"the private key of QUERY_TLS_CERT (PEM)"`
	MaxKeys int     `env:"QUERY_MAX_KEYS" envDefault:"1000" help:"most counters in one request; each costs Redis up to two hash reads for every window that is asked about"`

	MaxCells  int64 `env:"QUERY_MAX_CELLS" envDefault:"2000000" help:"most cells that the hashes read for one request can hold; a million that are filled take about half a second and 110 MB while they are answered"`
	MaxPoints int64 `env:"QUERY_MAX_POINTS" envDefault:"100000" help:"most points of one series request, of all its counters together"`

	LiveClients   int `env:"QUERY_LIVE_CLIENTS" envDefault:"10000" help:"most clients that may listen at /v1/live"`
	LiveQuestions int `env:"QUERY_LIVE_QUESTIONS" envDefault:"500" help:"most distinct questions (counter and window) of those clients; each is up to two hash reads, four times a second"`
}

// maxMaxKeys bounds QUERY_MAX_KEYS: Redis executes the reads of a request one
// after the other, and the answer is held in memory.
const maxMaxKeys = 100_000

// Validate checks what the types do not.
func (s *Settings) Validate() error {
	if err := window.CheckNamespace(s.Redis.Namespace); err != nil {
		return &boot.SettingError{Key: "TALLYROLL_NAMESPACE", Value: s.Redis.Namespace, Allowed: err.Error()}
	}
	if _, _, err := net.SplitHostPort(s.Addr); err != nil {
		return &boot.SettingError{Key: "QUERY_ADDR", Value: s.Addr, Allowed: "host:port"}
	}
	if s.MaxKeys < 1 || s.MaxKeys > maxMaxKeys {
		return &boot.SettingError{Key: "QUERY_MAX_KEYS", Value: strconv.Itoa(s.MaxKeys), Allowed: fmt.Sprintf("a whole number from 1 to %d", maxMaxKeys)}
	}
	for _, most := range []struct {
		key string
		n   int64
	}{{"QUERY_MAX_CELLS", s.MaxCells}, {"QUERY_MAX_POINTS", s.MaxPoints},
		{"QUERY_LIVE_CLIENTS", int64(s.LiveClients)}, {"QUERY_LIVE_QUESTIONS", int64(s.LiveQuestions)}} {
		if most.n < 1 {
			return &boot.SettingError{Key: most.key, Value: strconv.FormatInt(most.n, 10), Allowed: "a whole number from 1 on"}
		}
	}
	if s.NATSURL.Set() && !plainSubject(s.Redis.Namespace) {
		return &boot.SettingError{Key: "TALLYROLL_NAMESPACE", Value: s.Redis.Namespace, Allowed: "with NATS_URL, a namespace without a dot at its ends or two in a row: it is the first part of the subjects"}
	}
	switch {
	case s.TLSCert == "" && s.TLSKey == "":
	case s.TLSKey == "":
		return &boot.SettingError{Key: "QUERY_TLS_CERT", Value: s.TLSCert, Allowed: "a PEM file together with QUERY_TLS_KEY"}
	case s.TLSCert == "":
		return &boot.SettingError{Key: "QUERY_TLS_KEY", Value: s.TLSKey, Allowed: "a PEM file together with QUERY_TLS_CERT"}
	default:
		if _, err := tls.LoadX509KeyPair(s.TLSCert, s.TLSKey); err != nil {
			return &boot.SettingError{Key: "QUERY_TLS_CERT", Value: s.TLSCert, Allowed: fmt.Sprintf("a PEM certificate that belongs to the key in QUERY_TLS_KEY (%v)", err)}
		}
	}
	return nil
}
