package consume

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// clocksApart is a difference between clocks that a person should know about. docs/delivery.md
// says what such a difference does.
const clocksApart = 2 * time.Second

// The clocks that are compared with this process's clock, as the metric names them.
const (
	clockNATS  = "nats"
	clockRedis = "redis"
)

// clocks compares the servers' clocks with this process's. Every answer that carries
// a time serves as a comparison, so no request is made for this alone.
type clocks struct {
	log    zerolog.Logger
	metric *prometheus.GaugeVec // seconds, by clock

	mu    sync.Mutex
	ahead map[string]time.Duration // of this process's clock, by clock
	apart bool                     // the log has said so
}

func newClocks(m *metrics, log zerolog.Logger) *clocks {
	return &clocks{log: log, metric: m.clockDifference, ahead: make(map[string]time.Duration)}
}

// observe notes how far a clock is ahead of this process's; see window.ClockAhead.
func (c *clocks) observe(clock string, ahead time.Duration) {
	c.metric.WithLabelValues(clock).Set(ahead.Seconds())
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead[clock] = ahead
	nats, redis := c.ahead[clockNATS], c.ahead[clockRedis]
	worst := max(nats.Abs(), redis.Abs(), (nats - redis).Abs())
	if worst > clocksApart && !c.apart {
		c.apart = true
		c.log.Warn().Stringer("nats_ahead_of_worker", nats.Round(time.Millisecond)).Stringer("redis_ahead_of_worker", redis.Round(time.Millisecond)).
			Msg("the clocks of NATS, Redis and this worker differ: synchronise them with NTP; docs/delivery.md says how this affects answers")
	}
	if worst <= clocksApart/2 && c.apart { // half, so that a difference near the limit is not logged again and again
		c.apart = false
		c.log.Info().Msg("the clocks of NATS, Redis and this worker agree again")
	}
}
