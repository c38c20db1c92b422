// Package buildinfo tells Prometheus which release of a program runs. It is apart from boot so that
// programs without metrics do not carry Prometheus's client.
package buildinfo

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"

	"tallyroll/internal/boot"
)

// Collector returns the gauge tallyroll_build_info, which is 1 and says in its labels what runs.
func Collector() prometheus.Collector {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tallyroll_build_info", Help: "1. The labels say which release runs, and which release of Go built it.",
		ConstLabels: prometheus.Labels{"version": boot.Version(), "goversion": runtime.Version()},
	})
	info.Set(1)
	return info
}
