// Package buildinfo has the metrics that every program shares: its release, what its process takes, and whether the
// files that it reads again while it runs are in use. It is apart from boot so that programs without metrics do not
// carry Prometheus's client.
package buildinfo

import (
	"cmp"
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

// collector returns the gauge tallyroll_build_info, which is 1, with labels of what runs.
func collector() prometheus.Collector {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tallyroll_build_info", Help: "1. The labels say which release runs, from which commit, and which release of Go built it.",
		ConstLabels: prometheus.Labels{"version": boot.Version(), "revision": cmp.Or(boot.Revision(), "unknown"), "goversion": runtime.Version()},
	})
	info.Set(1)
	return info
}

// Reloads is the gauge tallyroll_last_reload_successful of the files that a program reads again while it runs.
type Reloads struct{ gauge *prometheus.GaugeVec }

// NewReloads registers the gauge.
func NewReloads(registry prometheus.Registerer) Reloads {
	gauge := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "tallyroll", Name: "last_reload_successful",
		Help: "1 if what was read last of a file is in use, 0 if it could not be used and what was read before stays.",
	}, []string{"what"})
	registry.MustRegister(gauge)
	return Reloads{gauge}
}

// Of returns what is to be told of each time that a file has been read again: certificate, limits, rules or tokens.
// The file has been read once before.
func (r Reloads) Of(what string) func(error) {
	gauge := r.gauge.WithLabelValues(what)
	gauge.Set(1)
	return func(err error) {
		if err != nil {
			gauge.Set(0)
			return
		}
		gauge.Set(1)
	}
}
