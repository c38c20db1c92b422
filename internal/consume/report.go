package consume

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"tallyroll/internal/hit"
	"tallyroll/internal/platform/human"
	"tallyroll/internal/platform/trace"
	"tallyroll/internal/rejects"
)

// What sessions report in addition to metrics: what streams wait for, outages of Redis, clocks that differ,
// and rejects.

// slowCommit is how long a commit may make no progress before the worker counts as not ready. It is longer
// than the transactions of any load take, and shorter than a caller's timeout.
const slowCommit = 3 * time.Second

// Waits holds what each stream waits for. It is safe for concurrent use.
type Waits struct {
	mu    sync.Mutex
	waits map[string]waiting // by stream
}

type waiting struct {
	since time.Time
	cause error // the last failure; nil without one
}

// NewWaits returns empty Waits.
func NewWaits() *Waits { return &Waits{waits: make(map[string]waiting)} }

// begin records that a commit begins, or has made progress.
func (w *Waits) begin(stream string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waits[stream] = waiting{since: time.Now()}
}

// setCause records why a stream waits.
func (w *Waits) setCause(stream string, cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	current := w.waits[stream]
	if current.since.IsZero() {
		current.since = time.Now()
	}
	current.cause = cause
	w.waits[stream] = current
}

// end records that a stream waits for nothing.
func (w *Waits) end(stream string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waits, stream)
}

// Cause returns why a stream is not being read; nil if unknown.
func (w *Waits) Cause(stream string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.waits[stream].cause
}

// Longest describes the commit that has waited longest, if longer than slowCommit; otherwise it returns "".
func (w *Waits) Longest() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var longest string
	for stream, at := range w.waits {
		if errors.Is(at.cause, ErrCopy) {
			continue
		}
		if longest == "" || at.since.Before(w.waits[longest].since) {
			longest = stream
		}
	}
	at := w.waits[longest]
	took := time.Since(at.since)
	if longest == "" || took < slowCommit {
		return ""
	}
	cause := "no reply yet"
	if at.cause != nil {
		cause = at.cause.Error()
	}
	return fmt.Sprintf("stream %s: a commit has waited for %s: %s", longest, human.Duration(took), cause)
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

func (o *outage) end() {
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

// clocks compares the servers' clocks with this process's. It uses the times in replies to other requests.
type clocks struct {
	log    zerolog.Logger
	metric *prometheus.GaugeVec // seconds, by clock

	mu     sync.Mutex
	ahead  map[string]time.Duration // of this process's clock, by clock
	differ bool                     // the log has reported that the clocks differ
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
	if worst > clocksApart && !c.differ {
		c.differ = true
		c.log.Warn().Stringer("nats_ahead_of_worker", nats.Round(time.Millisecond)).Stringer("redis_ahead_of_worker",
			redis.Round(time.Millisecond)).
			Msg("the clocks of NATS, Redis and this worker differ: synchronise them with NTP; " +
				"docs/delivery.md describes how this affects answers")
	}
	if worst <= clocksApart/2 && c.differ { // half, so that a difference near the limit is not logged repeatedly
		c.differ = false
		c.log.Info().Msg("the clocks of NATS, Redis and this worker agree again")
	}
}

const reportRejectsEvery = time.Minute

// rejectLog logs the first reject of each reason, then their number once per minute. It outlives sessions,
// whose flushes use it one after the other.
type rejectLog struct {
	log    zerolog.Logger
	counts map[hit.Reason]*rejectCount
}

type rejectCount struct {
	more   int       // rejects since logged
	logged time.Time // when the log last reported them
}

func newRejectLog(log zerolog.Logger) *rejectLog {
	return &rejectLog{log, make(map[hit.Reason]*rejectCount)}
}

func (l *rejectLog) add(now time.Time, stored []rejects.Reject) {
	for _, r := range stored {
		if count := l.counts[r.Reason]; count != nil {
			count.more++
			continue
		}
		l.counts[r.Reason] = &rejectCount{logged: now}
		line := l.log.Warn().Str("reason", string(r.Reason)).Str("detail", rejects.HeaderText(r.Detail)).
			Uint64("sequence", r.Seq).Int("item", r.Item)
		if r.Trace != "" {
			line = line.Str("trace_id", trace.ID(r.Trace))
		}
		line.Msg("a hit is rejected: it is in " + rejects.Stream + "; further ones of this reason are counted once " +
			"per minute")
	}
}

// report logs the number of rejects since its last line, for each reason that is due, or for all.
func (l *rejectLog) report(now time.Time, all bool) {
	for _, reason := range hit.Reasons {
		count := l.counts[reason]
		if count == nil || count.more == 0 || !all && now.Sub(count.logged) < reportRejectsEvery {
			continue
		}
		l.log.Warn().Str("reason", string(reason)).Int("rejected", count.more).
			Stringer("within", now.Sub(count.logged).Round(time.Second)).Msg("hits were rejected")
		count.more, count.logged = 0, now
	}
}
