package collect

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"tallyroll/internal/hit"
	"tallyroll/internal/platform/natsconn"
	"tallyroll/internal/platform/outbox"
	"tallyroll/internal/platform/program"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/web"
)

type Settings struct {
	NATS     natsconn.Settings
	Log      program.Log
	Shutdown web.Shutdown

	web.Addresses `envPrefix:"COLLECT_" ADDR.default:"127.0.0.1:8081"`

	Hosts   web.Hosts `env:"COLLECT_HOSTS" help:"public names at which POST /v1/hits may be called, comma-separated, such as collect.example.com; * is any; addresses, names of one part and private ones such as *.internal need none, and nothing is asked with COLLECT_TOKENS_FILE or over HTTPS"`
	Subject string    `env:"COLLECT_SUBJECT" envDefault:"hits.collect" help:"the subject that messages are published to: one that a stream of hits takes"`

	MaxWait time.Duration `env:"COLLECT_MAX_WAIT" envDefault:"5ms" help:"the longest that requests gather into one message, 0s to 1s; while nothing is under way to JetStream, a request does not wait"`
	Timeout time.Duration `env:"COLLECT_TIMEOUT" envDefault:"30s" help:"how long a request waits for JetStream, 1s to 90s, before it is answered 504: stored or not is unknown"`

	MaxBody     int64 `env:"COLLECT_MAX_BODY" envDefault:"1048576" help:"most bytes of one body, after unpacking"`
	MaxHits     int   `env:"COLLECT_MAX_HITS" envDefault:"10000" help:"most hits of one request, and of one message; at most INGEST_MAX_HITS of the workers"`
	MaxRequests int   `env:"COLLECT_MAX_REQUESTS" envDefault:"10000" help:"most requests at a time; more are answered 503"`
	MaxWaiting  int64 `env:"COLLECT_MAX_WAITING" envDefault:"67108864" help:"most bytes of bodies and of hits in memory; if there are more, requests are answered 503"`

	TokensFile string `env:"COLLECT_TOKENS_FILE" help:"a YAML file of bearer tokens, in the form of QUERY_TOKENS_FILE; with it, POST /v1/hits needs one with the right count; it is read again when it changes and at SIGHUP"`
	Pages      PageSettings
}

// The timeout is below the two minutes for which JetStream by default remembers an id, so resending is safe.
const (
	maxMaxWait             = time.Second
	minTimeout, maxTimeout = time.Second, 90 * time.Second
)

func (s *Settings) Validate() error {
	if outbox.CheckSubject(s.Subject) != nil {
		return &setting.Error{Key: "COLLECT_SUBJECT", Value: s.Subject, MustBe: "a subject to publish to, such as " +
			"hits.collect: without wildcards (* and >), spaces and empty parts"}
	}
	return cmp.Or(
		setting.CheckDuration("COLLECT_MAX_WAIT", s.MaxWait, 0, maxMaxWait),
		setting.CheckDuration("COLLECT_TIMEOUT", s.Timeout, minTimeout, maxTimeout),
		setting.CheckMost(setting.Most{Key: "COLLECT_MAX_BODY", N: s.MaxBody},
			setting.Most{Key: "COLLECT_MAX_HITS", N: int64(s.MaxHits)},
			setting.Most{Key: "COLLECT_MAX_REQUESTS", N: int64(s.MaxRequests)}, setting.Most{Key: "COLLECT_MAX_WAITING",
				N: s.MaxWaiting}))
}

// PageSettings are about hits that web pages send from their visitors' browsers.
type PageSettings struct {
	Origins PageOrigins `env:"COLLECT_ORIGINS" help:"web origins whose pages may use /v1/beacon and /v1/hit.gif, comma-separated, such as https://shop.example.com; needs COLLECT_BEACON_PREFIX"`
	Prefix  string      `env:"COLLECT_BEACON_PREFIX" help:"put before every key that a page sends, such as web.; needs COLLECT_ORIGINS"`
	MaxHits int         `env:"COLLECT_BEACON_MAX_HITS" envDefault:"100" help:"most hits of one beacon"`
	MaxN    int64       `env:"COLLECT_BEACON_MAX_N" envDefault:"100" help:"largest n of one hit of a page"`
}

// maxPrefix leaves room for the pages' keys within hit.MaxName bytes.
const maxPrefix = 128

func (s PageSettings) on() bool { return !s.Origins.IsEmpty() && s.Prefix != "" }

func (s *PageSettings) Validate() error {
	if s.Prefix != "" && (len(s.Prefix) > maxPrefix || hit.CheckName([]byte(s.Prefix)) != nil) {
		return &setting.Error{Key: "COLLECT_BEACON_PREFIX", Value: s.Prefix,
			MustBe: fmt.Sprintf("the beginning of a counter's name, such as web.: up to %d bytes of UTF-8 without "+
				"control characters", maxPrefix)}
	}
	if s.MaxN < 1 || s.MaxN > hit.MaxN {
		return &setting.Error{Key: "COLLECT_BEACON_MAX_N", Value: strconv.FormatInt(s.MaxN, 10),
			MustBe: fmt.Sprintf("a whole number from 1 to %d", int64(hit.MaxN))}
	}
	return setting.CheckMost(setting.Most{Key: "COLLECT_BEACON_MAX_HITS", N: int64(s.MaxHits)})
}

func (s PageSettings) warn(log zerolog.Logger) {
	switch {
	case !s.Origins.IsEmpty() && s.Prefix == "":
		log.Warn().Msg("COLLECT_ORIGINS has no effect: set COLLECT_BEACON_PREFIX, too, if pages shall count")
	case s.Origins.IsEmpty() && s.Prefix != "":
		log.Warn().Msg("COLLECT_BEACON_PREFIX has no effect: set COLLECT_ORIGINS, too, if pages shall count")
	case s.on():
		log.Info().Msgf("anyone can make counters below COLLECT_BEACON_PREFIX: bound how many, such as with "+
			"INGEST_MAX_NAMES=%s=10000 in the settings of ingest", s.Prefix)
	}
}

// PageOrigins are named origins: never all.
type PageOrigins struct{ web.Origins }

func (o *PageOrigins) UnmarshalText(text []byte) error {
	if string(text) == "*" {
		return errors.New("comma-separated origins such as https://shop.example.com, each named: with * any page of " +
			"the web could count here")
	}
	return o.Name(string(text))
}
