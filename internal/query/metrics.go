package query

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tallyroll/internal/limit"
	"tallyroll/internal/web"
)

// metrics are described in docs/metrics.md.
type metrics struct {
	*web.Metrics
	redisSeconds   prometheus.Histogram
	liveReads      prometheus.Counter
	limitDecisions *prometheus.CounterVec // by limit, result and source
}

func newMetrics() *metrics {
	m := &metrics{
		Metrics: web.NewMetrics("query", 14),
		redisSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "tallyroll", Subsystem: "query", Name: "redis_seconds",
			Help:    "Seconds that Redis took for the reads of one answer.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
		}),
		liveReads: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "tallyroll", Subsystem: "query", Name: "live_reads_total",
			Help: "Reads of Redis for all who listen at /v1/live together.",
		}),
		limitDecisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "tallyroll", Subsystem: "limit", Name: "decisions_total",
			Help: "Takes by what was decided about each, under which limit (empty: numbers in the request) and by whom.",
		}, []string{"limit", "result", "source"}),
	}
	m.Registry.MustRegister(m.redisSeconds, m.liveReads, m.limitDecisions)
	return m
}

// decided counts the decisions of an answer.
func (m *metrics) decided(a *limit.Answer) {
	for i := range a.Decisions {
		d := &a.Decisions[i]
		result := "refused"
		if d.Allowed {
			result = "allowed"
		}
		m.limitDecisions.WithLabelValues(d.Take.Limit.Name, result, string(d.Source)).Inc()
	}
}

// notDecided counts takes about which nothing could be decided.
func (m *metrics) notDecided(takes []limit.Take) {
	for i := range takes {
		m.limitDecisions.WithLabelValues(takes[i].Limit.Name, "error", "").Inc()
	}
}

// registerClock adds the gauge of Redis's clock.
func (m *metrics) registerClock(difference func() (ahead time.Duration, known bool)) {
	m.Registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "tallyroll", Subsystem: "query", Name: "clock_difference_seconds", ConstLabels: prometheus.Labels{"clock": "redis"},
		Help: "Seconds that a clock is ahead of this machine's (negative: behind). Answers go by the clock of Redis.",
	}, func() float64 {
		ahead, _ := difference()
		return ahead.Seconds()
	}))
}

// registerLive adds the gauges of /v1/live.
func (m *metrics) registerLive(counts func() (clients, questions int)) {
	m.Registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "tallyroll", Subsystem: "query", Name: "live_clients", Help: "Clients that listen at /v1/live.",
		}, func() float64 { clients, _ := counts(); return float64(clients) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "tallyroll", Subsystem: "query", Name: "live_questions", Help: "Distinct questions of the clients that listen at /v1/live.",
		}, func() float64 { _, questions := counts(); return float64(questions) }),
	)
}
