// Package buildinfo tells Prometheus which program runs: its release, and what its process takes. It is apart from
// boot so that programs without metrics do not carry Prometheus's client.
package buildinfo

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"tallyroll/internal/boot"
)

// NewRegistry returns a registry with the metrics that every program has.
func NewRegistry() *prometheus.Registry {
	out := prometheus.NewRegistry()
	out.MustRegister(collector(), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return out
}

// collector returns the gauge tallyroll_build_info, which is 1 and says in its labels what runs.
func collector() prometheus.Collector {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tallyroll_build_info", Help: "1. The labels say which release runs, and which release of Go built it.",
		ConstLabels: prometheus.Labels{"version": boot.Version(), "goversion": runtime.Version()},
	})
	info.Set(1)
	return info
}
