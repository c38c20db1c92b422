package consume

import (
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"tallyroll/internal/human"
)

// What sessions report besides metrics: what streams wait for, outages of Redis, and clocks that differ.

// slowCommit is how long a commit may make no progress before the worker counts as not ready. It is longer
// than the transactions of any load take, and shorter than a caller's timeout.
const slowCommit = 3 * time.Second

// Waits holds what each stream waits for. It is safe for concurrent use.
type Waits struct {
	mu sync.Mutex
	by map[string]wait // by stream
}

type wait struct {
	since time.Time
	why   error // the last failure; nil if there was none
}

// NewWaits makes Waits of no stream.
func NewWaits() *Waits { return &Waits{by: make(map[string]wait)} }

// begin records that a commit begins, or has made progress.
func (w *Waits) begin(stream string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.by[stream] = wait{since: time.Now()}
}

func (w *Waits) blame(stream string, why error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.by[stream]
	if now.since.IsZero() {
		now.since = time.Now()
	}
	now.why = why
	w.by[stream] = now
}

func (w *Waits) end(stream string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.by, stream)
}

// Why returns why a stream is not being read; nil if unknown.
func (w *Waits) Why(stream string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.by[stream].why
}

// Lasting describes the commit that has waited longest, if longer than slowCommit; otherwise it returns "".
func (w *Waits) Lasting() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var longest string
	for stream, at := range w.by {
		if longest == "" || at.since.Before(w.by[longest].since) {
			longest = stream
		}
	}
	at := w.by[longest]
	took := time.Since(at.since)
	if longest == "" || took < slowCommit {
		return ""
	}
	why := "no answer yet"
	if at.why != nil {
		why = at.why.Error()
	}
	return fmt.Sprintf("stream %s: a commit has waited for %s: %s", longest, human.Duration(took), why)
}

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

// clocksApart is the difference between clocks from which the log warns; see docs/delivery.md.
const clocksApart = 2 * time.Second

const (
	clockNATS  = "nats"
	clockRedis = "redis"
)

// clocks compares the servers' clocks with this process's. Every answer that carries a time serves for that,
// so no request is made for it.
type clocks struct {
	log    zerolog.Logger
	metric *prometheus.GaugeVec // seconds, by clock

	mu    sync.Mutex
	ahead map[string]time.Duration // of this process's clock, by clock
	apart bool                     // the log has said so
}

func newClocks(m *Metrics, log zerolog.Logger) *clocks {
	return &clocks{log: log, metric: m.clockDifference, ahead: make(map[string]time.Duration)}
}

// observe records how far a clock is ahead of this process's; see window.ClockAhead.
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
