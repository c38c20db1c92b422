package worker

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"tallyroll/internal/consume"
	"tallyroll/internal/platform/buildinfo"
)

// What a worker shows about itself at INGEST_ADDR.

// metrics are described in docs/metrics.md.
type metrics struct {
	sessions           *consume.Metrics
	fleetWorkers, held prometheus.Gauge
	natsUp             func(bool)
}

func newMetrics(r prometheus.Registerer) *metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "tallyroll", Subsystem: "ingest", Name: name,
			Help: help})
	}
	m := &metrics{
		sessions: consume.NewMetrics(r),
		natsUp:   buildinfo.NATSUp(r),
		fleetWorkers: gauge("fleet_workers", "Workers that share the streams, including this one; 0 if no fleet can "+
			"be joined."),
		held: gauge("streams_held", "Streams that this worker reads; 0 while it stands by."),
	}
	r.MustRegister(m.fleetWorkers, m.held)
	return m
}

// status is what the status server shows. It is safe for concurrent use.
type status struct {
	waits *consume.Waits

	mu        sync.Mutex
	conn      *nats.Conn      // nil until the worker's share of the streams is known
	reading   map[string]bool // by stream that the worker holds: whether a session reads it
	idleRules []string        // of each rule that counts nothing, where it is and why
	copies    *consume.Copies // nil until the worker has connected
}

// serve serves /healthz (the process runs), /readyz (the worker reads every stream of its share, and no
// commit has waited for long; with the rules that count nothing and the copies), /metrics and /debug/pprof/.
func (s *status) serve(registry *prometheus.Registry) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprintln(rw, "ok") })
	mux.HandleFunc("GET /readyz", func(rw http.ResponseWriter, _ *http.Request) {
		why, notes := s.unready()
		if why != "" {
			http.Error(rw, why, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(rw, strings.Join(append([]string{"ready"}, notes...), "\n"))
	})
	buildinfo.RouteMetrics(mux, registry)
	buildinfo.RouteProfiles(mux)
	return mux
}

// unready returns why this worker does not read its share of the streams; "" if it does, or stands by. A copy
// that stands still on purpose is a note.
func (s *status) unready() (why string, notes []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.conn == nil:
		return "the share of the streams is unknown yet: if this lasts, the log has the reason", nil
	case s.conn.Status() != nats.CONNECTED:
		return "NATS does not answer", nil
	}
	for _, stream := range slices.Sorted(maps.Keys(s.reading)) {
		if s.reading[stream] {
			continue
		}
		why := s.waits.Cause(stream)
		if errors.Is(why, consume.ErrCopy) {
			notes = append(notes, why.Error())
			continue
		}
		if why != nil {
			return fmt.Sprintf("stream %s is not being read: %v", stream, why), nil
		}
		return fmt.Sprintf("stream %s is not being read yet", stream), nil
	}
	return s.waits.Longest(), slices.Concat(s.idleRules, notes, s.copies.Notes())
}

func (s *status) setCopies(c *consume.Copies) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.copies = c
}

func (s *status) setConn(conn *nats.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn = conn
}

func (s *status) setReading(stream string, reading bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reading[stream] = reading
}

func (s *status) remove(stream string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.reading, stream)
}

func (s *status) streams() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.reading))
}

func (s *status) setIdleRules(now []string) (before []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, s.idleRules = s.idleRules, now
	return before
}
