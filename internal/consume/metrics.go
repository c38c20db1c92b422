package consume

import (
	"github.com/prometheus/client_golang/prometheus"

	"tallyroll/internal/consume/source"
	"tallyroll/internal/hit"
	"tallyroll/internal/platform/buildinfo"
	"tallyroll/internal/window/commit"
)

// Metrics are the metrics of sessions; docs/metrics.md describes them.
type Metrics struct {
	messages, hits, discarded, conflicts, sessions, lost, unmet *prometheus.CounterVec // by stream
	rejects, skipped, lossReports                               *prometheus.CounterVec // by stream and reason
	overflowed                                                  *prometheus.CounterVec // by stream and prefix
	commands, retries                                           prometheus.Counter
	commitSeconds, commitCommands, commitHits                   prometheus.Histogram
	lagMessages, lagSeconds, uncommitted, catchUp               *prometheus.GaugeVec // by stream
	clockDifference                                             *prometheus.GaugeVec // by clock
	rules                                                       *prometheus.GaugeVec // by fingerprint

	all []interface{ DeletePartialMatch(prometheus.Labels) int } // but the histograms
}

// NewMetrics creates and registers the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := new(Metrics)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "tallyroll", Subsystem: "ingest", Name: name,
			Help: help}, labels)
		r.MustRegister(c)
		m.all = append(m.all, c)
		return c
	}
	gauge := func(name, help, label string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "tallyroll", Subsystem: "ingest", Name: name,
			Help: help}, []string{label})
		r.MustRegister(g)
		m.all = append(m.all, g)
		return g
	}
	histogram := func(name, help string, start, factor float64, count int) prometheus.Histogram {
		h := prometheus.NewHistogram(buildinfo.Native(prometheus.HistogramOpts{
			Namespace: "tallyroll", Subsystem: "ingest", Name: name, Help: help,
			Buckets: prometheus.ExponentialBuckets(start, factor, count),
		}))
		r.MustRegister(h)
		return h
	}
	m.messages = counter("messages_total", "Messages read from the stream and committed.", "stream")
	m.hits = counter("hits_total", "Hits added to cells (the sum of their n).", "stream")
	m.rejects = counter("rejects_total", "Hits stored in HITS_REJECTED, by reason.", "stream", "reason")
	m.discarded = counter("discarded_messages_total", "Messages that the stream discarded before every shard had "+
		"counted its part of them.", "stream")
	m.conflicts = counter("cursor_conflicts_total", "Commits that found the cursor moved by another worker or by a "+
		"loss in Redis.", "stream")
	m.sessions = counter("sessions_total", "Sessions that began to count the stream.", "stream")
	m.lost = counter("failed_commits_total", "Transactions in which a single command failed after the cursor "+
		"had moved.", "stream")
	m.unmet = counter("unmet_total", "Events that met no rule's when, and were not counted.", "stream")
	m.skipped = counter("skipped_messages_total", "Messages that were read and have no hits, by reason: copy counts "+
		"in another stream, delete_marker is the server's own note, no_value the removal of a key or a message whose "+
		"body was left out, schedule one whose message will come, other_namespace a message for another namespace.",
		"stream", "reason")
	m.lossReports = counter("incomplete_marks_total", "Times that cursors were marked because hits may be missing or "+
		"count twice, by reason.", "stream", "reason")
	m.overflowed = counter("overflowed_names_total", "New names without room, whose hits count on overflow counters, "+
		"by the prefix of the bound; once per transaction.", "stream", "prefix")
	m.commands = counter("commands_total", "Redis commands in applied transactions.").WithLabelValues()
	m.retries = counter("commit_retries_total", "Commits without a reply, so that the worker checked "+
		"them again.").WithLabelValues()
	m.commitSeconds = histogram("commit_seconds", "Seconds of one transaction, cursor check included.", 0.0005, 2, 14)
	m.commitCommands = histogram("commit_commands", "Redis commands in one transaction.", 1, 2, 14)
	m.commitHits = histogram("commit_hits", "Hits in one transaction.", 1, 4, 12)
	m.lagMessages = gauge("lag_messages", "Messages in the stream after the last one that is committed.", "stream")
	m.lagSeconds = gauge("lag_seconds", "How long ago the last committed message had been stored, if there are later "+
		"ones; 0 if all are committed.", "stream")
	m.uncommitted = gauge("uncommitted_messages", "Messages read and not committed yet.", "stream")
	m.catchUp = gauge("catch_up_seconds", "Estimate of the seconds until the end of the stream is reached; 0 unless "+
		"far behind, +Inf if the end moves away.", "stream")
	m.clockDifference = gauge("clock_difference_seconds", "How much a server's clock is ahead of this worker's "+
		"(negative: behind), less what the round trip may explain.", "clock")
	m.rules = gauge("rules_info", "1 for the fingerprint of the rules by which this worker reads new messages.",
		"fingerprint")
	return m
}

// start creates a stream's series at zero, so that a rate sees the first step.
func (m *Metrics) start(stream string) {
	for _, c := range []*prometheus.CounterVec{m.messages, m.hits, m.discarded, m.conflicts, m.lost, m.unmet} {
		c.WithLabelValues(stream)
	}
	m.overflowed.WithLabelValues(stream, "") // by memory; those of bounds begin when names overflow
	m.catchUp.WithLabelValues(stream)        // set only when far behind
	for _, reason := range source.SkipReasons {
		m.skipped.WithLabelValues(stream, reason)
	}
	for reason := range reasons {
		m.lossReports.WithLabelValues(stream, string(reason))
	}
	for _, reason := range hit.Reasons {
		m.rejects.WithLabelValues(stream, string(reason))
	}
}

// end removes a stream's gauges: a worker has no lag in a stream that it does not read.
func (m *Metrics) end(stream string) {
	for _, g := range []*prometheus.GaugeVec{m.lagMessages, m.lagSeconds, m.uncommitted, m.catchUp} {
		g.DeleteLabelValues(stream)
	}
}

// Forget removes all series of a stream that is gone.
func (m *Metrics) Forget(stream string) {
	for _, vector := range m.all {
		vector.DeletePartialMatch(prometheus.Labels{"stream": stream})
	}
}

// reason is why hits may be missing or count twice. It is a label of a metric.
type reason string

const (
	discardedBefore reason = "discarded_before_counting"
	discardedUnread reason = "discarded_unread"
	recreated       reason = "stream_recreated"
	replaced        reason = "stream_replaced"
	rolledBack      reason = "stream_rolled_back"
	unproven        reason = "last_message_gone"
	tornFile        reason = "torn_file"        // of Redis: a commit finds it
	redisClockFell  reason = "redis_clock_fell" // the same
)

var reasons = map[reason]string{
	discardedBefore: "messages were discarded before counting began",
	discardedUnread: "messages were discarded before they were read",
	recreated:       "the stream was recreated: counting it from its first message",
	replaced: "the stream was replaced by a copy with the same messages (a restored backup, or a mirror): " +
		"continuing after the last message applied; what the copy lacks is missing",
	rolledBack: "the stream was rolled back: continuing after the messages that were applied; what it lost since " +
		"is missing",
	unproven:       "the message that was applied last is gone, and so is the proof that none was discarded after it",
	tornFile:       commit.ErrTorn.Error(),
	redisClockFell: commit.ErrClockFell.Error(),
}
