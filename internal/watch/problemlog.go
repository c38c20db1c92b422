package watch

import (
	"time"

	"github.com/rs/zerolog"

	"tallyroll/internal/human"
)

// problemLog logs a problem when it begins, once per minute while it lasts, and when it ends.
type problemLog struct {
	since time.Time // zero: there is no problem
	last  time.Time // when it was last logged
}

func (p *problemLog) warn(log zerolog.Logger, err error, message string) {
	if p.since.IsZero() {
		p.since = time.Now()
	}
	if time.Since(p.last) < time.Minute {
		return
	}
	p.last = time.Now()
	log.Warn().Err(err).Msg(message)
}

func (p *problemLog) recovered(log zerolog.Logger, message string) {
	if p.since.IsZero() {
		return
	}
	log.Info().Str("after", human.Duration(time.Since(p.since))).Msg(message)
	p.since, p.last = time.Time{}, time.Time{}
}
