package main

import (
	"time"

	"tallyroll/internal/boot"
	"tallyroll/internal/window"
)

// Settings of the program. --help prints their tags.
type Settings struct {
	Redis boot.Redis
	Log   boot.Log

	Addr   string      `env:"PROMQL_ADDR" envDefault:"127.0.0.1:9091" help:"where HTTP listens, host:port"`
	Tokens boot.Tokens `env:"PROMQL_TOKENS" secret:"true" help:"bearer tokens, comma-separated; if set, every /api call needs one"`

	MaxCounters int           `env:"PROMQL_MAX_COUNTERS" envDefault:"1000" help:"most counters that the selectors of one query together may read or look through; each costs up to two hash reads per selector and tier with the default tiers"`
	MaxCells    int64         `env:"PROMQL_MAX_CELLS" envDefault:"2000000" help:"most cells that the hashes read for one selector can hold; a million filled cells take about half a second and 110 MB while a query is answered"`
	MaxSamples  int           `env:"PROMQL_MAX_SAMPLES" envDefault:"1000000" help:"most samples that one query may read or hold at a time"`
	Timeout     time.Duration `env:"PROMQL_TIMEOUT" envDefault:"10s" help:"longest time that a query may take, its wait for others included"`
	Concurrency int           `env:"PROMQL_CONCURRENCY" envDefault:"4" help:"most queries that run at a time; others wait"`
}

// maxTimeout bounds PROMQL_TIMEOUT: nobody waits longer for a panel.
const maxTimeout = 10 * time.Minute

// Validate checks what the types of the fields do not.
func (s *Settings) Validate() error {
	if err := window.CheckNamespace(s.Redis.Namespace); err != nil {
		return &boot.SettingError{Key: "TALLYROLL_NAMESPACE", Value: s.Redis.Namespace, Allowed: err.Error()}
	}
	if err := boot.CheckAddress("PROMQL_ADDR", s.Addr); err != nil {
		return err
	}
	err := boot.CheckMost(boot.Most{Key: "PROMQL_MAX_COUNTERS", N: int64(s.MaxCounters)}, boot.Most{Key: "PROMQL_MAX_CELLS", N: s.MaxCells},
		boot.Most{Key: "PROMQL_MAX_SAMPLES", N: int64(s.MaxSamples)}, boot.Most{Key: "PROMQL_CONCURRENCY", N: int64(s.Concurrency)})
	if err != nil {
		return err
	}
	if s.Timeout < time.Millisecond || s.Timeout > maxTimeout {
		return &boot.SettingError{Key: "PROMQL_TIMEOUT", Value: s.Timeout.String(), Allowed: "a duration from 1ms to " + maxTimeout.String()}
	}
	return nil
}
