package collect

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tallyroll/internal/web"
)

// metrics are described in docs/metrics.md.
type metrics struct {
	*web.Metrics
	storeSeconds prometheus.Histogram
	hits         prometheus.Counter
	messages     prometheus.Counter
	duplicates   prometheus.Counter
	sentAgain    prometheus.Counter
}

func newMetrics(g *gate) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "tallyroll", Subsystem: "collect", Name: name, Help: help})
	}
	gauge := func(name, help string, value func() int64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "tallyroll", Subsystem: "collect", Name: name, Help: help},
			func() float64 { return float64(value()) })
	}
	m := &metrics{
		Metrics: web.NewMetrics("collect", 17),
		storeSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "tallyroll", Subsystem: "collect", Name: "store_seconds",
			Help:    "Seconds from the first send of a message until JetStream had stored it.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 17),
		}),
		hits:       counter("hits_total", "Hit objects and CloudEvents that JetStream has stored; each may count more than one."),
		messages:   counter("messages_total", "Messages that JetStream has stored."),
		duplicates: counter("duplicates_total", "Messages that JetStream had stored before: sent again by this service, or by a client with the same Idempotency-Key."),
		sentAgain:  counter("sent_again_total", "Sends of messages of whose earlier send nothing was known."),
	}
	m.Registry.MustRegister(m.storeSeconds, m.hits, m.messages, m.duplicates, m.sentAgain,
		gauge("requests", "Requests under way.", g.requests.Load),
		gauge("waiting_bytes", "Bytes of bodies and hits in memory, beyond the first 4096 of each request.", g.bytes.Load))
	return m
}

// stored counts a message that is stored.
func (m *metrics) stored(msg *message, duplicate bool) {
	m.storeSeconds.Observe(time.Since(msg.firstSent).Seconds())
	if duplicate {
		m.duplicates.Inc()
		return
	}
	m.messages.Inc()
	m.hits.Add(float64(msg.hits))
}
