package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"tallyroll/internal/buildinfo"
)

// metrics are described in docs/metrics.md.
type metrics struct {
	registry       *prometheus.Registry
	requestSeconds *prometheus.HistogramVec // by route and code
	reloads        buildinfo.Reloads
}

func newMetrics() *metrics {
	m := &metrics{
		registry: buildinfo.NewRegistry(),
		requestSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "tallyroll", Subsystem: "promql", Name: "request_seconds",
			Help:    "Seconds from a request's header to the end of its answer, by route and status.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16),
		}, []string{"route", "code"}),
	}
	m.registry.MustRegister(m.requestSeconds)
	m.reloads = buildinfo.NewReloads(m.registry)
	return m
}
