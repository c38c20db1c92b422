package query

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	"tallyroll/internal/limit/counts"
	"tallyroll/internal/platform/natsconn"
	"tallyroll/internal/platform/program"
	"tallyroll/internal/platform/redisconn"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/query/limitapi"
	"tallyroll/internal/web"
)

type Settings struct {
	Redis    redisconn.Settings
	Log      program.Log
	Shutdown web.Shutdown

	web.Addresses `envPrefix:"QUERY_" ADDR.default:"127.0.0.1:8080"`

	NATS     natsconn.Settings `NATS_URL.help:"NATS servers as for ingest, comma-separated: query answers requests there, too, and lists streams and rejects; it does not wait for them; set to nothing: there is no NATS"`
	NATSNone bool              `emptied:"NATS_URL"`

	Counts counts.Settings

	Tokens     setting.Tokens `env:"QUERY_TOKENS" secret:"true" help:"bearer tokens, comma-separated; they may do everything; if set, every /v1 call and /probe needs one of them or of QUERY_TOKENS_FILE"`
	TokensFile string         `env:"QUERY_TOKENS_FILE" help:"a YAML file of further bearer tokens, each with rights, prefixes of counters and an end; it is read again when it changes and at SIGHUP"`
	Hosts      web.Hosts      `env:"QUERY_HOSTS" help:"public names at which query may be asked, comma-separated, such as stats.example.com; * is any; addresses, names of one part and private ones such as *.internal need none, and nothing is asked with tokens or over HTTPS"`
	Origins    web.Origins    `env:"QUERY_CORS_ORIGINS" help:"origins whose pages may ask from a browser: * or comma-separated, such as https://stats.example.com; none by default; pages of named origins may take, too, those of * only with a token"`
	Frames     FrameAncestors `env:"QUERY_FRAME_ANCESTORS" help:"who may show the page in a frame, comma-separated: self, and origins such as https://shop.example.com; by default nobody"`
	MaxKeys    int            `env:"QUERY_MAX_KEYS" envDefault:"1000" help:"most counters in one request; each costs Redis up to two hash reads per window with the default tiers"`

	MaxCells  int64 `env:"QUERY_MAX_CELLS" envDefault:"2000000" help:"most cells that the hashes read for one request can hold; a million filled cells take about half a second and 110 MB while a request is answered"`
	MaxPoints int64 `env:"QUERY_MAX_POINTS" envDefault:"100000" help:"most points of one series request, of all its counters together"`

	MaxUniqueCells int64 `env:"QUERY_MAX_UNIQUE_CELLS" envDefault:"100000" help:"most cells of uniques that one request reads, each as often as a bound needs it; one of 2,000 unique values or more costs Redis 39 µs, a smaller one a few"`

	MaxSum int `env:"QUERY_MAX_SUM" envDefault:"10000" help:"most counters that an answer adds up over a prefix or by groups; each costs Redis up to two hash reads per window; /v1/top lists the largest of any number"`

	MaxProbe   int `env:"QUERY_MAX_PROBE" envDefault:"500" help:"most totals (counter and window) in one answer of /probe; each is four series in Prometheus"`
	MaxExports int `env:"QUERY_MAX_EXPORTS" envDefault:"2" help:"most exports (/v1/export) under way at once, half of them of one token, or without tokens of one address; each keeps Redis busy for as long as its client reads fast enough"`

	Erase Erasing `env:"QUERY_ERASE" envDefault:"off" help:"on: DELETE /v1/counters erases counters; needs a Redis user with the rights of ingest; set QUERY_TOKENS, or all who may ask may erase"`

	LiveClients   int `env:"QUERY_LIVE_CLIENTS" envDefault:"10000" help:"most clients that may listen at /v1/live; beyond that the answer is 503"`
	LiveQuestions int `env:"QUERY_LIVE_QUESTIONS" envDefault:"500" help:"most distinct questions (counter and window) of those clients; each costs up to two hash reads with the default tiers, four times per second; beyond that the answer is 503"`

	LimitsFile     string            `env:"QUERY_LIMITS_FILE" help:"a YAML file of named limits, for /v1/take, /v1/limit and /v1/authz; it is read again when it changes and at SIGHUP"`
	Take           limitapi.TakeMode `env:"QUERY_TAKE" envDefault:"named" help:"which takes are counted: named (limits of QUERY_LIMITS_FILE), any (numbers in the request, too: all who may ask can create any number of keys in Redis) or off"`
	Timeout        time.Duration     `env:"QUERY_TIMEOUT" envDefault:"2s" help:"how long a question waits for Redis or NATS, 100ms to 60s, before it is answered 503"`
	TakeTimeout    time.Duration     `env:"QUERY_TAKE_TIMEOUT" envDefault:"500ms" help:"how long a decision waits for Redis, 1ms to 5s, before the limit's fail mode decides; on a machine with too much to do, Redis answers after 400ms, too"`
	TrustedProxies web.Networks      `env:"QUERY_TRUSTED_PROXIES" help:"networks of proxies whose X-Forwarded-For is trusted, comma-separated, such as 10.0.0.0/8; without it no limit can go by the client's address"`
}

// maxMaxKeys bounds QUERY_MAX_KEYS: Redis executes the reads in sequence, and query holds the whole answer.
const maxMaxKeys = 100_000

const (
	minTimeout, maxTimeout         = 100 * time.Millisecond, time.Minute
	minTakeTimeout, maxTakeTimeout = time.Millisecond, 5 * time.Second
)

func (s *Settings) Validate() error {
	if s.MaxKeys < 1 || s.MaxKeys > maxMaxKeys {
		return &setting.Error{Key: "QUERY_MAX_KEYS", Value: strconv.Itoa(s.MaxKeys),
			MustBe: fmt.Sprintf("a whole number from 1 to %d", maxMaxKeys)}
	}
	err := cmp.Or(
		setting.CheckMost(setting.Most{Key: "QUERY_MAX_PROBE", N: int64(s.MaxProbe)}, setting.Most{Key: "QUERY_MAX_SUM",
			N: int64(s.MaxSum)}, setting.Most{Key: "QUERY_MAX_CELLS", N: s.MaxCells},
			setting.Most{Key: "QUERY_MAX_POINTS", N: s.MaxPoints}, setting.Most{Key: "QUERY_MAX_UNIQUE_CELLS",
				N: s.MaxUniqueCells}, setting.Most{Key: "QUERY_MAX_EXPORTS", N: int64(s.MaxExports)},
			setting.Most{Key: "QUERY_LIVE_CLIENTS", N: int64(s.LiveClients)},
			setting.Most{Key: "QUERY_LIVE_QUESTIONS", N: int64(s.LiveQuestions)}),
		setting.CheckDuration("QUERY_TIMEOUT", s.Timeout, minTimeout, maxTimeout),
		setting.CheckDuration("QUERY_TAKE_TIMEOUT", s.TakeTimeout, minTakeTimeout, maxTakeTimeout))
	if err != nil {
		return err
	}
	if s.asksNATS() && !plainSubject(s.Redis.Namespace) {
		return &setting.Error{Key: "TALLYROLL_NAMESPACE", Value: s.Redis.Namespace, MustBe: "a namespace without a " +
			"dot at its ends or two in a row, because with NATS it is the first part of the subjects; or set " +
			"NATS_URL to nothing"}
	}
	return nil
}

func (s *Settings) asksNATS() bool { return s.NATS.URL.Set() && !s.NATSNone }
