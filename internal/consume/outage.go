package consume

import (
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// outage logs once that Redis is lost and once that it is back.
type outage struct {
	log   zerolog.Logger
	mu    sync.Mutex
	since time.Time
}

func (o *outage) begin(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() {
		o.since = time.Now()
		o.log.Warn().Err(err).Msg("Redis lost: hits wait in the stream")
	}
}

func (o *outage) over() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.since.IsZero() {
		o.log.Info().Stringer("after", time.Since(o.since).Round(time.Millisecond)).Msg("Redis back")
		o.since = time.Time{}
	}
}
