package boot

import (
	"fmt"
	"io"
	"time"

	"github.com/rs/zerolog"
)

// Log settings.
type Log struct {
	Level  LogLevel  `env:"LOG_LEVEL" envDefault:"info" help:"what is logged: debug, info, warn, error"`
	Format LogFormat `env:"LOG_FORMAT" envDefault:"json" help:"json for machines, console for people"`
}

// LogLevel is the least level that is logged.
type LogLevel zerolog.Level

// UnmarshalText reads debug, info, warn or error.
func (l *LogLevel) UnmarshalText(text []byte) error {
	switch string(text) {
	case "debug", "info", "warn", "error":
		level, err := zerolog.ParseLevel(string(text))
		*l = LogLevel(level)
		return err
	}
	return fmt.Errorf("debug, info, warn or error")
}

// LogFormat is how log lines are written.
type LogFormat string

// UnmarshalText reads json or console.
func (f *LogFormat) UnmarshalText(text []byte) error {
	switch string(text) {
	case "json", "console":
		*f = LogFormat(text)
		return nil
	}
	return fmt.Errorf("json or console")
}

// New is a logger that writes to w.
func (l Log) New(w io.Writer) zerolog.Logger {
	if l.Format == "console" {
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: time.TimeOnly}
	}
	return zerolog.New(w).Level(zerolog.Level(l.Level)).With().Timestamp().Logger()
}
