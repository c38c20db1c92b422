package watch

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"tallyroll/internal/platform/buildinfo"
	"tallyroll/internal/platform/human"
	"tallyroll/internal/watch/history"
	"tallyroll/internal/web"
)

type metrics struct {
	*web.Metrics
	evaluations     *prometheus.CounterVec
	evaluateSeconds prometheus.Histogram
	lastEvaluation  prometheus.Gauge
	evaluating      prometheus.Gauge
	fileDiffers     prometheus.Gauge
	states          *prometheus.GaugeVec
	changes         prometheus.Counter
	deliveries      *prometheus.CounterVec
	deliverySeconds *prometheus.HistogramVec
	delaySeconds    *prometheus.HistogramVec
	undeliveredAge  *prometheus.GaugeVec
	waiting         *prometheus.GaugeVec
}

func newMetrics() *metrics {
	name := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "tallyroll", Subsystem: "watch", Name: name, Help: help}
	}
	seconds := func(name, help string, buckets int) prometheus.HistogramOpts {
		return buildinfo.Native(prometheus.HistogramOpts{
			Namespace: "tallyroll", Subsystem: "watch", Name: name, Help: help,
			Buckets: prometheus.ExponentialBuckets(0.001, 2, buckets),
		})
	}
	registry := buildinfo.NewRegistry()
	m := &metrics{
		Metrics: &web.Metrics{Registry: registry}, // without metrics of requests, because it answers none
		evaluations: prometheus.NewCounterVec(prometheus.CounterOpts(name("evaluations_total",
			"Evaluations of all rules by this process, by result: done, or failed because Redis did not answer.")),
			[]string{"result"}),
		evaluateSeconds: prometheus.NewHistogram(seconds("evaluate_seconds", "Seconds per evaluation, from the query "+
			"of Redis until the stream has stored the heartbeat.", 14)),
		lastEvaluation: prometheus.NewGauge(prometheus.GaugeOpts(name("last_evaluation_timestamp_seconds",
			"When this process last evaluated. Only the leader evaluates: take the latest of all processes."))),
		evaluating: prometheus.NewGauge(prometheus.GaugeOpts(name("evaluating",
			"1 if this process is the leader, which evaluates, else 0."))),
		fileDiffers: prometheus.NewGauge(prometheus.GaugeOpts(name("file_differs", "1 if the leader has another "+
			"WATCH_FILE than this process."))),
		states: prometheus.NewGaugeVec(prometheus.GaugeOpts(name("states", "States of rules and keys, by "+
			"state; young is unknown because counting began inside the window. Only the leader reports them.")),
			[]string{"state"}),
		changes: prometheus.NewCounter(prometheus.CounterOpts(name("changes_total",
			"Changes of states that this process has stored."))),
		deliveries: prometheus.NewCounterVec(prometheus.CounterOpts(name("deliveries_total",
			"Attempts to deliver a change to a target, by result: delivered, failed (retried later), or given_up "+
				"(listed by GET /v1/watch).")), []string{"target", "result"}),
		deliverySeconds: prometheus.NewHistogramVec(seconds("delivery_seconds", "Seconds that a target took per "+
			"delivered change.", 15), []string{"target"}),
		delaySeconds: prometheus.NewHistogramVec(seconds("delay_seconds", "Seconds from when a change was stored "+
			"until it was delivered.", 27), []string{"target"}),
		undeliveredAge: prometheus.NewGaugeVec(prometheus.GaugeOpts(name("undelivered_age_seconds",
			"Age of the oldest undelivered change of a target, or how long posts to Alertmanager have failed, in "+
				"seconds; 0 if none. Only processes that deliver to the target report it.")), []string{"target"}),
		waiting: prometheus.NewGaugeVec(prometheus.GaugeOpts(name("waiting", "Undelivered changes of a target. Only "+
			"the process that delivers to it reports them.")), []string{"target"}),
	}
	m.Registry.MustRegister(m.evaluations, m.evaluateSeconds, m.lastEvaluation, m.evaluating, m.fileDiffers, m.states,
		m.changes,
		m.deliveries, m.deliverySeconds, m.delaySeconds, m.undeliveredAge, m.waiting)
	for _, result := range []string{"done", "failed"} {
		m.evaluations.WithLabelValues(result)
	}
	return m
}

func (m *metrics) observeEvaluation(began time.Time) {
	m.evaluations.WithLabelValues("done").Inc()
	m.evaluateSeconds.Observe(time.Since(began).Seconds())
	m.lastEvaluation.SetToCurrentTime()
}

// stateYoung is the metric's label of states that are unknown because counting is young. They end without
// anyone's help.
const stateYoung = "young"

// setStates counts live states. A record keeps the reason with which its state began, so results have the
// reasons of now.
func (m *metrics) setStates(entries map[string]*entry, results []Result, namespace string) {
	young := make(map[string]bool)
	for _, r := range results {
		if r.Reason == reasonYoung {
			young[stateSubject(namespace, r.Rule.Name, r.Key)] = true
		}
	}
	n := make(map[string]int)
	for subject, e := range entries {
		switch {
		case !e.isLive():
		case e.State == history.Unknown && young[subject]:
			n[stateYoung]++
		default:
			n[string(e.State)]++
		}
	}
	for _, s := range history.States {
		m.states.WithLabelValues(string(s)).Set(float64(n[string(s)]))
	}
	m.states.WithLabelValues(stateYoung).Set(float64(n[stateYoung]))
}

// resetLeaderGauges resets the gauges that only the leader sets.
func (m *metrics) resetLeaderGauges() {
	m.evaluating.Set(0)
	m.states.Reset()
}

// initTarget creates the series of a target, so that their rates begin at 0.
func (m *metrics) initTarget(target string) {
	for _, result := range []string{"delivered", "failed", "given_up"} {
		m.deliveries.WithLabelValues(target, result)
	}
}

func (m *metrics) observeDelivery(target string, began time.Time, delay time.Duration) {
	m.deliveries.WithLabelValues(target, "delivered").Inc()
	m.deliverySeconds.WithLabelValues(target).Observe(time.Since(began).Seconds())
	m.delaySeconds.WithLabelValues(target).Observe(max(0, delay.Seconds()))
}

// problemLog logs a problem when it begins, once per minute while it lasts, and when it ends.
type problemLog struct {
	since time.Time // zero: there is no problem
	last  time.Time // when it was last logged
}

func (p *problemLog) warn(log zerolog.Logger, err error, message string) {
	if p.since.IsZero() {
		p.since = time.Now()
	}
	if time.Since(p.last) < time.Minute {
		return
	}
	p.last = time.Now()
	log.Warn().Err(err).Msg(message)
}

func (p *problemLog) recovered(log zerolog.Logger, message string) {
	if p.since.IsZero() {
		return
	}
	log.Info().Str("after", human.Duration(time.Since(p.since))).Msg(message)
	p.since, p.last = time.Time{}, time.Time{}
}
