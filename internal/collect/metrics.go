package collect

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tallyroll/internal/platform/buildinfo"
	"tallyroll/internal/web"
)

const (
	// freeBytes of each request are covered by the bound on requests, so that large bodies do not keep small
	// ones out.
	freeBytes = 4 << 10
	// mostPooled bounds the memory, in bytes, that is kept for the next request.
	mostPooled = 64 << 10
)

// budget bounds what requests hold in memory, whatever clients send.
type budget struct {
	maxRequests, maxBytes int64
	requests, bytes       atomic.Int64
}

// enter lets a request in, which must then leave, or returns false.
func (b *budget) enter() bool {
	if b.requests.Add(1) > b.maxRequests {
		b.requests.Add(-1)
		return false
	}
	return true
}

func (b *budget) leave() { b.requests.Add(-1) }

// hold is one request's share of the budget's bytes.
type hold struct {
	budget *budget
	n      int64
}

// resize makes the hold fit this many bytes of a request. It changes nothing if that exceeds the bound.
func (h *hold) resize(bytes int) bool {
	n := max(0, int64(bytes)-freeBytes)
	more := n - h.n
	if more > 0 && h.budget.bytes.Add(more) > h.budget.maxBytes {
		h.budget.bytes.Add(-more)
		return false
	}
	if more < 0 {
		h.budget.bytes.Add(more)
	}
	h.n = n
	return true
}

// metrics are described in docs/metrics.md.
type metrics struct {
	*web.Metrics
	storeSeconds prometheus.Histogram
	hits         prometheus.Counter
	messages     prometheus.Counter
	duplicates   prometheus.Counter
	sentAgain    prometheus.Counter
}

func newMetrics(b *budget) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "tallyroll", Subsystem: "collect", Name: name,
			Help: help})
	}
	gauge := func(name, help string, value func() int64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "tallyroll", Subsystem: "collect", Name: name,
			Help: help},
			func() float64 { return float64(value()) })
	}
	m := &metrics{
		Metrics: web.NewMetrics("collect", 17),
		storeSeconds: prometheus.NewHistogram(buildinfo.Native(prometheus.HistogramOpts{
			Namespace: "tallyroll", Subsystem: "collect", Name: "store_seconds",
			Help:    "Seconds from the first send of a message until JetStream had stored it.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 17),
		})),
		hits: counter("hits_total", "Hit objects and CloudEvents that JetStream has stored; each may count more "+
			"than one."),
		messages: counter("messages_total", "Messages that JetStream has stored."),
		duplicates: counter("duplicates_total", "Messages that JetStream had stored before: sent again by this "+
			"service, or by a client with the same Idempotency-Key."),
		sentAgain: counter("sent_again_total", "Sends of messages whose earlier send had no answer yet."),
	}
	m.Registry.MustRegister(m.storeSeconds, m.hits, m.messages, m.duplicates, m.sentAgain,
		gauge("requests", "Requests under way.", b.requests.Load),
		gauge("waiting_bytes", "Bytes of bodies and hits in memory, beyond the first 4096 of each request.",
			b.bytes.Load))
	return m
}

// observeStored measures a stored message; sent is when it was first sent.
func (m *metrics) observeStored(hits int, sent time.Time, duplicate bool) {
	m.storeSeconds.Observe(time.Since(sent).Seconds())
	if duplicate {
		m.duplicates.Inc()
		return
	}
	m.messages.Inc()
	m.hits.Add(float64(hits))
}
