// Package wait waits: between attempts, until a server answers, and for the signal of another goroutine.
package wait

import (
	"context"
	"errors"
	"time"

	"github.com/rs/zerolog"
)

const (
	pause    = 250 * time.Millisecond // between attempts
	LogEvery = 10 * time.Second       // how often the wait is logged
)

// Until calls try until it succeeds, ctx ends, or it fails permanently: with an error that has a method
// Permanent and returns true there. It logs that it waits for what.
func Until(ctx context.Context, log zerolog.Logger, what string, try func(context.Context) error) error {
	return UntilLogging(ctx, log, what, LogEvery, try)
}

// UntilLogging is Until with another interval of the log lines.
func UntilLogging(ctx context.Context, log zerolog.Logger, what string, logEvery time.Duration,
	try func(context.Context) error) error {
	var logged time.Time
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		var permanent interface{ Permanent() bool }
		if errors.As(err, &permanent) && permanent.Permanent() {
			return err
		}
		if logged.IsZero() || time.Since(logged) > logEvery {
			logged = time.Now()
			log.Warn().Err(err).Msg("waiting for " + what)
		}
		if err := Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// Sleep waits for d. It returns ctx's error if ctx ends before.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
