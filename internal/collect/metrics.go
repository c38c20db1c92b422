package collect

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tallyroll/internal/platform/buildinfo"
	"tallyroll/internal/web"
)

// mostPooled bounds the memory, in bytes, that is kept for the next request.
const mostPooled = 64 << 10

// metrics are described in docs/metrics.md.
type metrics struct {
	*web.Metrics
	storeSeconds prometheus.Histogram
	hits         prometheus.Counter
	messages     prometheus.Counter
	duplicates   prometheus.Counter
	sentAgain    prometheus.Counter
}

func newMetrics(b *web.Budget) *metrics {
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
		gauge("requests", "Requests under way.", b.Requests),
		gauge("waiting_bytes", "Bytes of bodies and hits in memory, beyond the first 4096 of each request.",
			b.Bytes))
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
