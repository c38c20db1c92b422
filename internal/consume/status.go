package consume

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"

	"tallyroll/internal/human"
)

// What a worker shows and logs about itself: /healthz, /readyz and /metrics, what its streams wait for, outages of
// Redis, and clocks that differ.

// status is what the status server shows. Any goroutine may use it.
type status struct {
	waits *waits

	mu        sync.Mutex
	conn      *nats.Conn       // nil until the worker's share of the streams is known
	phases    map[string]phase // of the sessions, by stream
	idleRules []string         // of each rule that counts nothing, where it is and why
}

func newStatus(waits *waits) *status {
	return &status{waits: waits, phases: make(map[string]phase)}
}

// serve serves /healthz (the process runs), /readyz (the worker reads every stream of its share, and
// no commit has waited for longer than slowCommit; it names rules that count nothing) and /metrics.
func (s *status) serve(registry *prometheus.Registry) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprintln(rw, "ok") })
	mux.HandleFunc("GET /readyz", func(rw http.ResponseWriter, _ *http.Request) {
		why, idleRules := s.unready()
		if why != "" {
			http.Error(rw, why, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(rw, strings.Join(append([]string{"ready"}, idleRules...), "\n"))
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	return mux
}

// unready returns why this worker does not do its share of the work. The reason is empty if the worker does, or
// if it stands by.
func (s *status) unready() (why string, idleRules []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.conn == nil:
		return "this worker does not know its share of the streams yet", nil
	case s.conn.Status() != nats.CONNECTED:
		return "NATS does not answer", nil
	}
	for _, stream := range slices.Sorted(maps.Keys(s.phases)) {
		if s.phases[stream] >= counting {
			continue
		}
		if why := s.waits.why(stream); why != nil {
			return fmt.Sprintf("stream %s is not being read: %v", stream, why), nil
		}
		return fmt.Sprintf("stream %s is not being read yet", stream), nil
	}
	return s.waits.lasting(), s.idleRules
}

// settle notes that the worker knows its share.
func (s *status) settle(conn *nats.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn = conn
}

// enter notes the phase of a stream's session.
func (s *status) enter(stream string, p phase) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.phases[stream] = p
}

// leave notes that the worker has let a stream go.
func (s *status) leave(stream string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.phases, stream)
}

// streams returns those that the worker has not let go.
func (s *status) streams() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.phases))
}

// setIdleRules replaces the rules that count nothing, and returns the previous ones.
func (s *status) setIdleRules(now []string) (before []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, s.idleRules = s.idleRules, now
	return before
}

// slowCommit is how long a commit may make no progress before the worker counts as not ready. It is
// longer than the transactions of any load take, and shorter than anyone waits for an answer.
const slowCommit = 3 * time.Second

// waits holds what each stream of a worker waits for.
type waits struct {
	mu sync.Mutex
	by map[string]wait // by stream
}

type wait struct {
	since time.Time
	why   error // the last failure; nil if there was none
}

func newWaits() *waits { return &waits{by: make(map[string]wait)} }

// begin notes that a commit begins, or that it has made progress.
func (w *waits) begin(stream string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.by[stream] = wait{since: time.Now()}
}

// blame notes what has failed.
func (w *waits) blame(stream string, why error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.by[stream]
	if now.since.IsZero() {
		now.since = time.Now()
	}
	now.why = why
	w.by[stream] = now
}

func (w *waits) end(stream string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.by, stream)
}

// why returns why a stream is not being read, or nil if that is not known.
func (w *waits) why(stream string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.by[stream].why
}

// lasting describes the commit that has waited longest, if it has waited for longer than slowCommit. It
// returns an empty string if none has.
func (w *waits) lasting() string {
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
