package collect

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/rs/zerolog"

	"tallyroll/internal/boot"
	"tallyroll/internal/hit"
	"tallyroll/internal/web"
)

// PageSettings are about hits that web pages send from their visitors' browsers.
type PageSettings struct {
	Origins PageOrigins `env:"COLLECT_ORIGINS" help:"web origins whose pages may use /v1/beacon and /v1/hit.gif, comma-separated, such as https://shop.example.com; needs COLLECT_BEACON_PREFIX"`
	Prefix  string      `env:"COLLECT_BEACON_PREFIX" help:"put before every key that a page sends, such as web.; needs COLLECT_ORIGINS"`
	MaxHits int         `env:"COLLECT_BEACON_MAX_HITS" envDefault:"100" help:"most hits of one beacon"`
	MaxN    int64       `env:"COLLECT_BEACON_MAX_N" envDefault:"100" help:"largest n of one hit of a page"`
}

// maxPrefix leaves room for the keys of pages: a counter's name has hit.MaxName bytes.
const maxPrefix = 128

// on reports whether pages may count.
func (s PageSettings) on() bool { return !s.Origins.None() && s.Prefix != "" }

// Validate checks what the types of the fields do not.
func (s *PageSettings) Validate() error {
	if s.Prefix != "" && (len(s.Prefix) > maxPrefix || hit.CheckName([]byte(s.Prefix)) != nil) {
		return &boot.SettingError{Key: "COLLECT_BEACON_PREFIX", Value: s.Prefix, Allowed: fmt.Sprintf("the beginning of a counter's name, such as web.: up to %d bytes of UTF-8 without control characters", maxPrefix)}
	}
	if s.MaxN < 1 || s.MaxN > hit.MaxN {
		return &boot.SettingError{Key: "COLLECT_BEACON_MAX_N", Value: strconv.FormatInt(s.MaxN, 10), Allowed: fmt.Sprintf("a whole number from 1 to %d", int64(hit.MaxN))}
	}
	return boot.CheckMost(boot.Most{Key: "COLLECT_BEACON_MAX_HITS", N: int64(s.MaxHits)})
}

// warn tells of a setting that has no effect without the other one.
func (s PageSettings) warn(log zerolog.Logger) {
	switch {
	case !s.Origins.None() && s.Prefix == "":
		log.Warn().Msg("COLLECT_ORIGINS has no effect: set COLLECT_BEACON_PREFIX, too, if pages shall count")
	case s.Origins.None() && s.Prefix != "":
		log.Warn().Msg("COLLECT_BEACON_PREFIX has no effect: set COLLECT_ORIGINS, too, if pages shall count")
	}
}

// PageOrigins are origins that are named: never all.
type PageOrigins struct{ web.Origins }

// UnmarshalText reads comma-separated origins.
func (o *PageOrigins) UnmarshalText(text []byte) error {
	if string(text) == "*" {
		return errors.New("comma-separated origins such as https://shop.example.com, each named: with * any page of the web could count here")
	}
	return o.Name(string(text))
}
