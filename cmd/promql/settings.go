package main

import (
	"time"

	"tallyroll/internal/boot"
	"tallyroll/internal/web"
	"tallyroll/internal/window"
)

// Settings of the program. --help prints their tags.
type Settings struct {
	Redis    boot.Redis
	Log      boot.Log
	Shutdown boot.Shutdown

	Addr    string      `env:"PROMQL_ADDR" envDefault:"127.0.0.1:9091" help:"where HTTP listens, host:port"`
	Hosts   boot.Hosts  `env:"PROMQL_HOSTS" help:"public names at which promql may be asked, comma-separated, such as promql.example.com; * is any; addresses, names of one part and private ones such as *.internal need none, and nothing is asked with PROMQL_TOKENS or over HTTPS"`
	TLSCert string      `env:"PROMQL_TLS_CERT" help:"a certificate file (PEM, chain included): serve HTTPS, with PROMQL_TLS_KEY; both files are read again when they change"`
	TLSKey  string      `env:"PROMQL_TLS_KEY" help:"the private key of PROMQL_TLS_CERT (PEM)"`
	Tokens  boot.Tokens `env:"PROMQL_TOKENS" secret:"true" help:"bearer tokens, comma-separated; if set, every /api call needs one"`

	MaxCounters int           `env:"PROMQL_MAX_COUNTERS" envDefault:"1000" help:"most counters that the selectors of one query together may read or look through; each costs up to two hash reads per selector and tier with the default tiers"`
	MaxCells    int64         `env:"PROMQL_MAX_CELLS" envDefault:"2000000" help:"most cells that the hashes read for one selector can hold; a million filled cells take about half a second and 110 MB while a query is answered"`
	MaxSamples  int           `env:"PROMQL_MAX_SAMPLES" envDefault:"1000000" help:"most samples that one query may read or hold at a time, and most steps of a subquery"`
	Timeout     time.Duration `env:"PROMQL_TIMEOUT" envDefault:"10s" help:"longest time that a query or a list may take, its wait for others included"`
	Concurrency int           `env:"PROMQL_CONCURRENCY" envDefault:"4" help:"most queries and lists that run at a time; others wait"`

	MaxEvaluations int64  `env:"PROMQL_MAX_EVALUATIONS" envDefault:"100000000" help:"most evaluations that one query may need: its steps times the samples in its ranges; as many take up to two seconds, in which the query cannot be ended"`
	MaxQuery       int    `env:"PROMQL_MAX_QUERY_BYTES" envDefault:"65536" help:"most bytes of a query, and of all match[] of a request together"`
	MaxRequests    int    `env:"PROMQL_MAX_REQUESTS" envDefault:"200" help:"most requests at a time, those that wait included; more are answered 503"`
	Memory         string `env:"GOMEMLIMIT" help:"most memory of the process, in Go's form, such as 900MiB; if not set, 256 MiB and what PROMQL_CONCURRENCY queries may need; queries that need more are ended"`
}

// maxTimeout bounds PROMQL_TIMEOUT: nobody waits longer for a panel.
const maxTimeout = 10 * time.Minute

// Validate checks what the types of the fields do not.
func (s *Settings) Validate() error {
	if err := window.CheckNamespace(s.Redis.Namespace); err != nil {
		return &boot.SettingError{Key: "TALLYROLL_NAMESPACE", Value: s.Redis.Namespace, Allowed: err.Error()}
	}
	if err := s.addresses().Validate(); err != nil {
		return err
	}
	err := boot.CheckMost(boot.Most{Key: "PROMQL_MAX_COUNTERS", N: int64(s.MaxCounters)}, boot.Most{Key: "PROMQL_MAX_CELLS", N: s.MaxCells},
		boot.Most{Key: "PROMQL_MAX_SAMPLES", N: int64(s.MaxSamples)}, boot.Most{Key: "PROMQL_CONCURRENCY", N: int64(s.Concurrency)},
		boot.Most{Key: "PROMQL_MAX_EVALUATIONS", N: s.MaxEvaluations}, boot.Most{Key: "PROMQL_MAX_QUERY_BYTES", N: int64(s.MaxQuery)},
		boot.Most{Key: "PROMQL_MAX_REQUESTS", N: int64(s.MaxRequests)})
	if err != nil {
		return err
	}
	if s.Timeout < time.Millisecond || s.Timeout > maxTimeout {
		return &boot.SettingError{Key: "PROMQL_TIMEOUT", Value: s.Timeout.String(), Allowed: "a duration from 1ms to " + maxTimeout.String()}
	}
	return nil
}

func (s *Settings) addresses() web.Addresses {
	return web.Addresses{Program: "PROMQL", Main: s.Addr, Certificate: s.TLSCert, Key: s.TLSKey}
}
