package program

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"tallyroll/internal/platform/progress"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/platform/trace"
)

// Sampled limits a log to five lines per minute, for failures that clients can cause any number of times.
func Sampled(log zerolog.Logger) zerolog.Logger {
	return log.Sample(&zerolog.BurstSampler{Burst: 5, Period: time.Minute})
}

// Log has the settings of the log.
type Log struct {
	Level  LogLevel  `env:"LOG_LEVEL" envDefault:"info" help:"what is logged: debug, info, warn, error"`
	Format LogFormat `env:"LOG_FORMAT" envDefault:"auto" help:"json for programs, console for reading; auto: console on a terminal, json elsewhere"`

	// Unknown are variables that look like settings of the program but are not. New warns of them.
	Unknown []setting.Unknown `unknown:"true"`
}

type LogLevel zerolog.Level

func (l *LogLevel) UnmarshalText(text []byte) error {
	switch string(text) {
	case "debug", "info", "warn", "error":
		level, err := zerolog.ParseLevel(string(text))
		*l = LogLevel(level)
		return err
	}
	return fmt.Errorf("debug, info, warn or error")
}

type LogFormat string

func (f *LogFormat) UnmarshalText(text []byte) error {
	if *f = LogFormat(text); !slices.Contains([]LogFormat{"auto", "json", "console"}, *f) {
		return errors.New("auto, json or console")
	}
	return nil
}

// zerolog keeps the time format in a package variable. Lines of several programs are sorted by time, and
// whole seconds are too coarse for that.
func init() { zerolog.TimeFieldFormat = "2006-01-02T15:04:05.000Z07:00" }

const consoleTime = "15:04:05.000"

// New returns a logger that writes to w. Only a terminal gets colours and, with auto, console lines. Lines
// with the context of a request (zerolog.Event.Ctx) have its trace id.
func (l Log) New(w io.Writer) zerolog.Logger {
	terminal := progress.IsTerminal(w)
	if l.Format == "console" || l.Format == "auto" && terminal {
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: consoleTime, NoColor: !terminal || os.Getenv("TERM") == "dumb" ||
			os.Getenv("NO_COLOR") != ""}
	}
	log := zerolog.New(w).Level(zerolog.Level(l.Level)).With().Timestamp().Logger().Hook(trace.Hook{})
	for _, u := range l.Unknown {
		log.Warn().Str("variable", u.Key).Str("nearest", u.Nearest).Msg("no such setting: the variable has no effect")
	}
	return log
}
