package consume

import (
	"github.com/prometheus/client_golang/prometheus"

	"tallyroll/internal/buildinfo"
	"tallyroll/internal/hit"
	"tallyroll/internal/source"
)

// Metrics are the metrics of sessions; docs/operations.md describes them.
type Metrics struct {
	messages, hits, discarded, conflicts, sessions, lost *prometheus.CounterVec // by stream
	rejects                                              *prometheus.CounterVec // by stream and reason
	commands                                             prometheus.Counter
	commitSeconds                                        prometheus.Histogram
	commitCommands, commitHits                           prometheus.Histogram
	retries                                              prometheus.Counter
	skipped                                              *prometheus.CounterVec // by stream and reason
	lagMessages, lagSeconds, uncommitted, catchUp        *prometheus.GaugeVec   // by stream
	clockDifference                                      *prometheus.GaugeVec   // by clock
	rules                                                *prometheus.GaugeVec   // by fingerprint
	unmet                                                *prometheus.CounterVec // by stream
	admissions                                           *prometheus.CounterVec // by stream and reason

	byStream []interface{ DeletePartialMatch(prometheus.Labels) int } // all that have a label stream
}

// NewMetrics creates and registers the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	var byStream []interface{ DeletePartialMatch(prometheus.Labels) int }
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "tallyroll", Subsystem: "ingest", Name: name, Help: help}, labels)
		byStream = append(byStream, c)
		return c
	}
	gauge := func(name, help, label string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "tallyroll", Subsystem: "ingest", Name: name, Help: help}, []string{label})
		byStream = append(byStream, g)
		return g
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(buildinfo.Native(prometheus.HistogramOpts{Namespace: "tallyroll", Subsystem: "ingest", Name: name, Help: help, Buckets: buckets}))
	}
	commands := counter("commands_total", "Redis commands in applied transactions.")
	retries := counter("commit_retries_total", "Commits whose fate was unknown, so that the worker checked them again.")
	m := &Metrics{
		messages:        counter("messages_total", "Messages read from the stream and committed.", "stream"),
		hits:            counter("hits_total", "Hits added to cells (the sum of their n).", "stream"),
		rejects:         counter("rejects_total", "Hits stored in HITS_REJECTED, by reason.", "stream", "reason"),
		discarded:       counter("discarded_messages_total", "Messages that the stream discarded before every shard had counted its part of them.", "stream"),
		conflicts:       counter("cursor_conflicts_total", "Commits that found the cursor moved by another worker or by a loss in Redis.", "stream"),
		sessions:        counter("sessions_total", "Times that the stream was taken or taken again.", "stream"),
		lost:            counter("failed_commits_total", "Transactions in which a single command failed after the cursor had moved.", "stream"),
		commands:        commands.WithLabelValues(),
		retries:         retries.WithLabelValues(),
		commitSeconds:   histogram("commit_seconds", "Seconds of one transaction, cursor check included.", prometheus.ExponentialBuckets(0.0005, 2, 14)),
		commitCommands:  histogram("commit_commands", "Redis commands in one transaction.", prometheus.ExponentialBuckets(1, 2, 14)),
		commitHits:      histogram("commit_hits", "Hits in one transaction.", prometheus.ExponentialBuckets(1, 4, 12)),
		skipped:         counter("skipped_messages_total", "Messages that were read and have no hits, by reason: delete_marker is the server's own note, other_namespace a message that is for one other namespace.", "stream", "reason"),
		lagMessages:     gauge("lag_messages", "Messages in the stream after the last one that is committed.", "stream"),
		lagSeconds:      gauge("lag_seconds", "How long ago the last committed message had been stored, if there are later ones; 0 when all are committed.", "stream"),
		uncommitted:     gauge("uncommitted_messages", "Messages read and not committed yet.", "stream"),
		catchUp:         gauge("catch_up_seconds", "Estimate of the seconds until the end of the stream is reached; 0 unless far behind, +Inf if the end moves away.", "stream"),
		clockDifference: gauge("clock_difference_seconds", "How much a server's clock is ahead of this worker's (negative: behind), less what the round trip may explain.", "clock"),
	}
	m.unmet = counter("unmet_total", "Events that met no rule's when, and so were left uncounted.", "stream")
	m.admissions = counter("admissions_total", "Times that the cursors admitted that hits may be missing, or counted twice, by reason.", "stream", "reason")
	m.rules = prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "tallyroll", Subsystem: "ingest", Name: "rules_info", Help: "1 for the fingerprint of the rules by which this worker reads new messages."}, []string{"fingerprint"})
	m.byStream = byStream
	r.MustRegister(m.messages, m.hits, m.rejects, m.discarded, m.conflicts, m.sessions, m.lost, commands, retries,
		m.commitSeconds, m.commitCommands, m.commitHits, m.skipped, m.lagMessages, m.lagSeconds, m.uncommitted, m.catchUp,
		m.clockDifference, m.unmet, m.admissions, m.rules)
	return m
}

// start creates a stream's series at zero, so that a rate sees the first step.
func (m *Metrics) start(stream string) {
	for _, c := range []*prometheus.CounterVec{m.messages, m.hits, m.discarded, m.conflicts, m.lost, m.unmet} {
		c.WithLabelValues(stream)
	}
	m.catchUp.WithLabelValues(stream) // set only when far behind
	m.skipped.WithLabelValues(stream, source.SkippedMarker)
	for reason := range reasons {
		m.admissions.WithLabelValues(stream, string(reason))
	}
	m.skipped.WithLabelValues(stream, source.SkippedNamespace)
	for _, reason := range hit.Reasons {
		m.rejects.WithLabelValues(stream, string(reason))
	}
}

// end removes a stream's gauges: a worker has no lag in a stream that it does not read.
func (m *Metrics) end(stream string) {
	m.lagMessages.DeleteLabelValues(stream)
	m.lagSeconds.DeleteLabelValues(stream)
	m.uncommitted.DeleteLabelValues(stream)
	m.catchUp.DeleteLabelValues(stream)
}

// Forget removes all series of a stream that is gone.
func (m *Metrics) Forget(stream string) {
	for _, vector := range m.byStream {
		vector.DeletePartialMatch(prometheus.Labels{"stream": stream})
	}
}
