package query

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// metrics are described in docs/metrics.md.
type metrics struct {
	registry       *prometheus.Registry
	requestSeconds *prometheus.HistogramVec // by route and code
	liveReads      prometheus.Counter
}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requestSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "tallyroll", Subsystem: "query", Name: "request_seconds",
			Help:    "Seconds from a request's header to the end of its answer, by route and status.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
		}, []string{"route", "code"}),
		liveReads: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "tallyroll", Subsystem: "query", Name: "live_reads_total",
			Help: "Reads of Redis for all who listen at /v1/live together.",
		}),
	}
	m.registry.MustRegister(m.requestSeconds, m.liveReads, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// registerClock adds the gauge of Redis's clock.
func (m *metrics) registerClock(difference func() (ahead time.Duration, known bool)) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "tallyroll", Subsystem: "query", Name: "clock_difference_seconds", ConstLabels: prometheus.Labels{"clock": "redis"},
		Help: "Seconds that a clock is ahead of this machine's (negative: behind). Answers go by the clock of Redis.",
	}, func() float64 {
		ahead, _ := difference()
		return ahead.Seconds()
	}))
}

// registerLive adds the gauges of /v1/live.
func (m *metrics) registerLive(counts func() (clients, questions int)) {
	m.registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "tallyroll", Subsystem: "query", Name: "live_clients", Help: "Clients that listen at /v1/live.",
		}, func() float64 { clients, _ := counts(); return float64(clients) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "tallyroll", Subsystem: "query", Name: "live_questions", Help: "Distinct questions of the clients that listen at /v1/live.",
		}, func() float64 { _, questions := counts(); return float64(questions) }),
	)
}
