package watch

import (
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/limit"
	"tallyroll/internal/limit/limitfile"
	"tallyroll/internal/platform/natsconn"
	"tallyroll/internal/platform/program"
	"tallyroll/internal/platform/redisconn"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/web"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"
)

// Settings of the program. --help prints their tags.
type Settings struct {
	NATS  natsconn.Settings
	Redis redisconn.Settings
	Log   program.Log

	File       string      `env:"WATCH_FILE" help:"a YAML file of rules and targets, which must be set; it is read again when it changes and at SIGHUP"`
	LimitsFile string      `env:"WATCH_LIMITS_FILE" help:"the YAML file of limits that rules with limit name, such as that of QUERY_LIMITS_FILE; it is read again as WATCH_FILE is"`
	Addr       web.Address `env:"WATCH_ADDR" envDefault:"127.0.0.1:9092" help:"where /healthz, /readyz and /metrics are, host:port"`

	Interval time.Duration `env:"WATCH_INTERVAL" envDefault:"1s" help:"how often all rules are evaluated, 100ms to 1m"`
	Timeout  time.Duration `env:"WATCH_TIMEOUT" envDefault:"10s" help:"how long a target may take for one change, 100ms to 15s"`
	GiveUp   time.Duration `env:"WATCH_GIVE_UP" envDefault:"24h" help:"how long a failed change is retried, with growing pauses, before it is given up; at most WATCH_KEEP; 5m if the target refuses the change itself (400, 403, 404, 413, 415, 422)"`

	Keep     time.Duration `env:"WATCH_KEEP" envDefault:"32d" help:"how long changes are kept, if this process creates the stream: at least 1h"`
	Changes  int64         `env:"WATCH_CHANGES" envDefault:"1000" help:"most changes of one rule's key that are kept, if this process creates the stream; a target that is away for longer misses the older ones"`
	Replicas int           `env:"WATCH_REPLICAS" envDefault:"1" help:"replicas of the stream, 1 to 5, if this process creates it"`

	MaxStates int `env:"WATCH_MAX_STATES" envDefault:"10000" help:"most keys of rules with group, top, each or limit whose state is neither ok nor resolved; each of these rules has an equal share, and one with more is unknown"`
	MaxSum    int `env:"WATCH_MAX_SUM" envDefault:"10000" help:"most counters that a rule with prefix reads, or keys that one with limit asks the limit for; each costs Redis up to two hash reads per evaluation"`

	Worker string `env:"WATCH_WORKER" help:"this process's name in logs and in the stream; by default the host's name"`
}

// Validate checks what the types of the fields do not.
func (s *Settings) Validate() error {
	if s.File == "" {
		return &setting.Error{Key: "WATCH_FILE", MustBe: "the name of a YAML file with rules and targets " +
			"(docs/watch.md)"}
	}
	for _, d := range []struct {
		key         string
		value       time.Duration
		least, most time.Duration
	}{
		{"WATCH_INTERVAL", s.Interval, 100 * time.Millisecond, time.Minute},
		{"WATCH_TIMEOUT", s.Timeout, 100 * time.Millisecond, 15 * time.Second},
		{"WATCH_KEEP", s.Keep, time.Hour, 10 * 365 * 24 * time.Hour},
		{"WATCH_GIVE_UP", s.GiveUp, time.Second, s.Keep},
	} {
		if d.value < d.least || d.value > d.most {
			return &setting.Error{Key: d.key, Value: d.value.String(), MustBe: fmt.Sprintf("a duration from %v to %v",
				d.least, d.most)}
		}
	}
	if s.Replicas < 1 || s.Replicas > 5 {
		return &setting.Error{Key: "WATCH_REPLICAS", Value: fmt.Sprint(s.Replicas),
			MustBe: "a whole number from 1 to 5"}
	}
	if s.Worker == "" {
		s.Worker, _ = os.Hostname()
	}
	return setting.CheckMost(setting.Most{Key: "WATCH_CHANGES", N: s.Changes}, setting.Most{Key: "WATCH_MAX_STATES",
		N: int64(s.MaxStates)}, setting.Most{Key: "WATCH_MAX_SUM", N: int64(s.MaxSum)})
}

func (s *Settings) file() setting.Path { return setting.Path{Key: "WATCH_FILE", File: s.File} }

// files returns the files of rules and, if it is set, of limits.
func (s *Settings) files() []setting.Path {
	if s.LimitsFile == "" {
		return []setting.Path{s.file()}
	}
	return []setting.Path{s.file(), {Key: "WATCH_LIMITS_FILE", File: s.LimitsFile}}
}

// parse returns a function that reads the texts of files with a parser of the rules.
func (s *Settings) parse(rules func([]byte, limitfile.Set) (*RuleSet, error)) func([][]byte) (*RuleSet, error) {
	return func(texts [][]byte) (set *RuleSet, err error) {
		var limits limitfile.Set
		if len(texts) > 1 {
			if limits, err = limitfile.Parse(texts[1]); err != nil {
				return nil, s.files()[1].Mistake(err)
			}
		}
		if set, err = rules(texts[0], limits); err != nil {
			return nil, s.file().Mistake(err)
		}
		return set, nil
	}
}

// timeouts holds the process's timeouts. Tests shorten them.
type timeouts struct {
	// lease is how long the leader may be silent before another process takes over.
	lease time.Duration
	// outage is how long no process must have reached Redis before states are unknown.
	outage time.Duration
	// orphanGrace is how long a process must have led before it ends states of rules that its file lacks: the
	// previous leader may have had another file, which is just being rolled out.
	orphanGrace time.Duration
	// retryMin and retryMax bound the pause after a failed attempt. It grows with the age of the change.
	retryMin, retryMax time.Duration
	// refusal is how long a target may refuse a change itself before the change is given up.
	refusal time.Duration
	// silence is how long a target may not answer a process before another process tries.
	silence time.Duration
}

// newTimeouts returns the timeouts for an evaluation interval. outage is as long as as_of may usually lag.
func newTimeouts(interval time.Duration) timeouts {
	return timeouts{
		lease: max(3*interval, 3*time.Second), outage: max(5*interval, 5*time.Second), orphanGrace: time.Minute,
		retryMin: time.Second, retryMax: time.Minute, refusal: 5 * time.Minute, silence: 15 * time.Second,
	}
}

const (
	publishTimeout = 5 * time.Second
	queryTimeout   = 4 * time.Second
)

// retryPause is the pause before a retry: half of age, within bounds. Jitter spreads simultaneous failures.
func (t timeouts) retryPause(age time.Duration) time.Duration {
	pause := min(max(age/2, t.retryMin), t.retryMax)
	return pause*4/5 + rand.N(pause/5)
}

func (s *Settings) newQuerier(client redis.UniversalClient) querier {
	return querier{read.NewReader(schema.NewStore(client, s.Redis.Namespace)),
		limit.New(client, s.Redis.Namespace, queryTimeout), s.MaxSum}
}
