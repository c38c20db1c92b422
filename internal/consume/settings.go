package consume

import (
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"tallyroll/internal/boot"
	"tallyroll/internal/window"
)

// Settings of the worker; --help prints their tags.
type Settings struct {
	NATS  boot.NATS
	Redis boot.Redis
	Log   boot.Log

	Tiers         string        `env:"TIERS" envDefault:"1s/1m,1m/1h,15m/1d,6h/30d" help:"cell/window pairs, finest first; units s m h d w; fixed for the life of a namespace"`
	TiersMaxCells int           `env:"TIERS_MAX_CELLS" envDefault:"512" help:"most cells that a tier may keep in one hash (two windows); past Redis's hash-max-listpack-entries a hash takes ten times the memory"`
	Shards        int           `env:"SHARDS" envDefault:"16" help:"number of Redis hash tags that counters are spread over; fixed for the life of a namespace"`
	Streams       Globs         `env:"INGEST_STREAMS" envDefault:"HITS*" help:"streams to count: names or globs, comma-separated; HITS_REJECTED never; new ones are found while running"`
	Subject       string        `env:"INGEST_SUBJECT" envDefault:"hits.>" help:"where no stream matches at start, the stream HITS is created on this subject"`
	Partitions    int           `env:"INGEST_PARTITIONS" envDefault:"1" help:"where no stream matches at start and this is N > 1, HITS_0 to HITS_<N-1> are created on hitp.<i>.>; where some of these are there, the missing ones are"`
	FlushInterval time.Duration `env:"INGEST_FLUSH_INTERVAL" envDefault:"250ms" help:"longest time that a hit waits in memory before its commit begins; shorter is fresher and costs Redis more"`
	MaxCommands   int           `env:"INGEST_MAX_COMMANDS" envDefault:"2000" help:"most Redis commands in one transaction, which blocks Redis while it runs (2000 take about 2 ms); a flush of more goes out in several"`
	MaxAhead      time.Duration `env:"INGEST_MAX_AHEAD" envDefault:"10s" help:"how far a hit's own time may be ahead of the time it was stored; it counts at the time stored, and one further ahead is rejected"`
	MaxHits       int           `env:"INGEST_MAX_HITS" envDefault:"10000" help:"most hits that one message may carry"`
	Replicas      int           `env:"INGEST_REPLICAS" envDefault:"1" help:"replicas of the streams that it creates, and of the bucket by which workers share streams"`
	MaxAge        time.Duration `env:"INGEST_MAX_AGE" envDefault:"48h" help:"how long streams that it creates keep hits, such as 48h, 7d or 2w: how far back a lost Redis can be rebuilt"`
	AllowEviction bool          `env:"INGEST_ALLOW_EVICTION" envDefault:"false" help:"true: run on a Redis that may evict any key (allkeys-*); cursors and counts can then vanish, and totals be wrong without a word"`
	Addr          string        `env:"INGEST_ADDR" envDefault:"127.0.0.1:9090" help:"where /healthz, /readyz and /metrics are served; if it is not set and the port is taken, at a free port, which the log names"`
	AddrGiven     bool          `given:"INGEST_ADDR"`
	Worker        string        `env:"INGEST_WORKER" help:"this worker's name, which no other of the namespace may have (default: host name and a random suffix)"`

	layout window.Layout
}

// Validate checks what the types do not.
func (s *Settings) Validate() error {
	tiers, err := window.ParseTiers(s.Tiers, s.TiersMaxCells)
	if err != nil {
		return &boot.SettingError{Key: "TIERS", Value: s.Tiers, Allowed: fmt.Sprintf("cell/window pairs such as 1s/1m,1m/1h: %v", err)}
	}
	s.layout = window.Layout{Tiers: tiers, Shards: s.Shards}
	if err := window.CheckNamespace(s.Redis.Namespace); err != nil {
		return &boot.SettingError{Key: "TALLYROLL_NAMESPACE", Value: s.Redis.Namespace, Allowed: err.Error()}
	}
	if !validSubject(s.Subject) {
		return &boot.SettingError{Key: "INGEST_SUBJECT", Value: s.Subject, Allowed: subjectForm}
	}
	for _, n := range []struct {
		key             string
		value, min, max int
	}{
		{"TIERS_MAX_CELLS", s.TiersMaxCells, 2, 1 << 20},
		{"SHARDS", s.Shards, 1, window.MaxShards},
		{"INGEST_PARTITIONS", s.Partitions, 1, 1024},
		{"INGEST_MAX_COMMANDS", s.MaxCommands, s.layout.CommandsPerHit(), 100_000},
		{"INGEST_MAX_HITS", s.MaxHits, 1, 1_000_000},
		{"INGEST_REPLICAS", s.Replicas, 1, 5},
	} {
		if n.value < n.min || n.value > n.max {
			return &boot.SettingError{Key: n.key, Value: strconv.Itoa(n.value), Allowed: fmt.Sprintf("a whole number from %d to %d", n.min, n.max)}
		}
	}
	for _, d := range []struct {
		key             string
		value, min, max time.Duration
	}{
		{"INGEST_FLUSH_INTERVAL", s.FlushInterval, time.Millisecond, time.Minute},
		{"INGEST_MAX_AHEAD", s.MaxAhead, 0, 24 * time.Hour},
		{"INGEST_MAX_AGE", s.MaxAge, time.Minute, 10 * 365 * 24 * time.Hour},
	} {
		if d.value < d.min || d.value > d.max {
			return &boot.SettingError{Key: d.key, Value: window.FormatDuration(d.value), Allowed: fmt.Sprintf("a duration from %s to %s", window.FormatDuration(d.min), window.FormatDuration(d.max))}
		}
	}
	if _, _, err := net.SplitHostPort(s.Addr); err != nil {
		return &boot.SettingError{Key: "INGEST_ADDR", Value: s.Addr, Allowed: "host:port"}
	}
	if s.Worker == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "worker"
		}
		s.Worker = host + "-" + strings.ToLower(rand.Text()[:8])
	}
	return nil
}

func (s *Settings) limits() limits {
	return limits{flushInterval: s.FlushInterval, maxCommands: s.MaxCommands, splits: flushTransactions, maxAhead: s.MaxAhead, maxHits: s.MaxHits}
}
