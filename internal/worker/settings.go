package worker

import (
	"crypto/rand"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"tallyroll/internal/consume"
	"tallyroll/internal/consume/fleet"
	"tallyroll/internal/hit"
	"tallyroll/internal/platform/human"
	"tallyroll/internal/platform/natsconn"
	"tallyroll/internal/platform/program"
	"tallyroll/internal/platform/redisconn"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/web"
	"tallyroll/internal/window"
)

// Settings of the worker; --help prints their tags.
type Settings struct {
	NATS  natsconn.Settings
	Redis redisconn.Settings
	Log   program.Log

	Tiers            string        `env:"TIERS" envDefault:"1s/1m,1m/1h,15m/1d,1h/32d" help:"cell/window pairs, finest first; units s m h d w y; changed by --retier alone; if it is not set, those of the namespace if there is one"`
	TiersGiven       bool          `given:"TIERS"`
	UniqueTiers      string        `env:"UNIQUE_TIERS" envDefault:"5m/1h,1h/1d,1d/32d" help:"cell/window pairs in which unique values of hits are counted, or off; fixed for the life of a namespace; if it is not set, those of the namespace if there is one"`
	UniqueTiersGiven bool          `given:"UNIQUE_TIERS"`
	Shards           int           `env:"SHARDS" envDefault:"16" help:"number of Redis hash tags that counters are spread over; fixed for the life of a namespace; if it is not set, those of the namespace if there is one"`
	ShardsGiven      bool          `given:"SHARDS"`
	Streams          fleet.Globs   `env:"INGEST_STREAMS" envDefault:"HITS*" help:"streams to count, in addition to those that a rule of INGEST_RULES names without a wildcard: names or globs, comma-separated; HITS_REJECTED never; new ones are found while running"`
	Subject          string        `env:"INGEST_SUBJECT" envDefault:"hits.>" help:"if no stream matches at start, the worker creates the stream HITS on this subject"`
	SubjectGiven     bool          `given:"INGEST_SUBJECT"`
	Partitions       int           `env:"INGEST_PARTITIONS" envDefault:"1" help:"if no stream matches at start and this is N > 1, the worker creates HITS_0 to HITS_<N-1> on hitp.<i>.>; if some of these exist, it creates the missing ones"`
	FlushInterval    time.Duration `env:"INGEST_FLUSH_INTERVAL" envDefault:"250ms" help:"longest time that a hit waits in memory before its commit begins; shorter is fresher and costs Redis more"`
	MaxCommands      int           `env:"INGEST_MAX_COMMANDS" envDefault:"2000" help:"most Redis commands in one transaction, which blocks Redis while it runs (2000 take about 2 ms); a larger flush is split into several"`
	MaxLoad          int           `env:"INGEST_MAX_LOAD" envDefault:"50331648" help:"most bytes of hits in memory that wait for their commit, all streams together; as many again are being committed; a worker that is behind needs fewer Redis commands per hit if it is larger"`
	MaxAhead         time.Duration `env:"INGEST_MAX_AHEAD" envDefault:"10s" help:"how far a hit's own time may be ahead of the time it was stored; such a hit counts at the time it was stored, and a hit further ahead is rejected"`
	MaxHits          int           `env:"INGEST_MAX_HITS" envDefault:"10000" help:"most hits that one message may carry"`
	Rules            string        `env:"INGEST_RULES" help:"a YAML file that defines which events count, and on which counters; it is read again when it changes and at SIGHUP; new rules hold for messages that no shard has passed; without a file, messages carry hits"`
	MaxNames         string        `env:"INGEST_MAX_NAMES" help:"most counters whose names begin with a prefix, such as web.=10000,=1000000: the longest prefix decides, the empty one bounds all others; without room, hits of new names count on counters such as web.~other.7; set the same for all workers"`
	NamesMemory      int           `env:"INGEST_NAMES_MEMORY" envDefault:"80" help:"percent of Redis's maxmemory in use from which on no new name has room; 0: at any use"`
	Replicas         int           `env:"INGEST_REPLICAS" envDefault:"1" help:"replicas of the streams that the worker creates, and of the bucket through which workers share streams"`
	ReplicasGiven    bool          `given:"INGEST_REPLICAS"`
	MaxAge           time.Duration `env:"INGEST_MAX_AGE" envDefault:"48h" help:"how long the streams that the worker creates keep hits, such as 48h, 7d or 2w: this is how far back a lost Redis can be rebuilt"`
	MaxAgeGiven      bool          `given:"INGEST_MAX_AGE"`
	AllowEviction    bool          `env:"INGEST_ALLOW_EVICTION" envDefault:"false" help:"true: run on a Redis that may evict any key (allkeys-*); cursors and counts can then vanish, and totals can be wrong without warning"`
	Addr             web.Address   `env:"INGEST_ADDR" envDefault:"127.0.0.1:8082" help:"where /healthz, /readyz, /metrics and Go's profiles (/debug/pprof/) are served; if it is not set and the port is in use, the worker takes a free port and logs it"`
	AddrGiven        bool          `given:"INGEST_ADDR"`
	Worker           string        `env:"INGEST_WORKER" help:"this worker's name in its log, in NATS and in the bucket through which workers share streams; a label: give each worker a different one (default: host name and a random suffix)"`

	layout window.Layout
	bounds window.NameBounds
}

const subjectForm = "a NATS subject such as hits.>"

func (s *Settings) Validate() error {
	tiers, err := window.ParseTiers(s.Tiers)
	if err != nil {
		return &setting.Error{Key: "TIERS", Value: s.Tiers,
			MustBe: fmt.Sprintf("cell/window pairs such as 1s/1m,1m/1h: %v", err)}
	}
	uniqueTiers, err := window.ParseUniqueTiers(s.UniqueTiers)
	if err != nil {
		return &setting.Error{Key: "UNIQUE_TIERS", Value: s.UniqueTiers,
			MustBe: fmt.Sprintf("off, or cell/window pairs such as 5m/1h,1h/1d: %v", err)}
	}
	s.layout = window.Layout{Tiers: tiers, UniqueTiers: uniqueTiers, Shards: s.Shards}
	s.bounds, err = window.ParseNameBounds(s.MaxNames)
	for _, b := range s.bounds {
		if err == nil { // the number is longer than any at the end of an overflow counter's name
			err = hit.CheckName([]byte(b.Prefix + window.OverflowPart + "1000000"))
		}
	}
	if err != nil {
		return &setting.Error{Key: "INGEST_MAX_NAMES", Value: s.MaxNames,
			MustBe: fmt.Sprintf("prefixes with how many names may have each, such as web.=10000,=1000000: %v", err)}
	}
	if !hit.ValidSubject(s.Subject) {
		return &setting.Error{Key: "INGEST_SUBJECT", Value: s.Subject, MustBe: subjectForm}
	}
	for _, n := range []struct {
		key             string
		value, min, max int
	}{
		{"SHARDS", s.Shards, 1, window.MaxShards},
		{"INGEST_PARTITIONS", s.Partitions, 1, 1024},
		{"INGEST_MAX_HITS", s.MaxHits, 1, 1_000_000},
		{"INGEST_MAX_LOAD", s.MaxLoad, 1 << 20, 1 << 32},
		{"INGEST_REPLICAS", s.Replicas, 1, 5},
		{"INGEST_NAMES_MEMORY", s.NamesMemory, 0, 100},
	} {
		if err := checkWhole(n.key, n.value, n.min, n.max); err != nil {
			return err
		}
	}
	if err := s.checkCommands(s.layout); err != nil {
		return err
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
			return &setting.Error{Key: d.key, Value: human.FormatDuration(d.value),
				MustBe: fmt.Sprintf("a duration from %s to %s", human.FormatDuration(d.min),
					human.FormatDuration(d.max))}
		}
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

func (s *Settings) checkCommands(layout window.Layout) error {
	return checkWhole("INGEST_MAX_COMMANDS", s.MaxCommands, layout.CommandsPerHit(true), 100_000)
}

func checkWhole(key string, value, least, most int) error {
	if value < least || value > most {
		return &setting.Error{Key: key, Value: strconv.Itoa(value), MustBe: fmt.Sprintf("a whole number from %d to %d",
			least, most)}
	}
	return nil
}

// mergeLayout returns the layout have with what the settings give.
func (s *Settings) mergeLayout(have window.Layout) window.Layout {
	if s.TiersGiven {
		have.Tiers = s.layout.Tiers
	}
	if s.UniqueTiersGiven {
		have.UniqueTiers = s.layout.UniqueTiers
	}
	if s.ShardsGiven {
		have.Shards = s.layout.Shards
	}
	return have
}

func (s *Settings) limits() consume.Limits {
	return consume.Limits{FlushInterval: s.FlushInterval, MaxCommands: s.MaxCommands, MaxLoad: s.MaxLoad,
		MaxAhead: s.MaxAhead, MaxHits: s.MaxHits}
}

// HitLimits are the bounds for hits under these settings, which must have been validated.
func (s *Settings) HitLimits() hit.Limits { return s.limits().HitLimits(s.layout) }
