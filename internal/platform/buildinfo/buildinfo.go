// Package buildinfo has what every program shows of itself: the metrics that all share (its release, what its
// process takes, whether the files that it reads again while it runs are in use), and its profiles. It is
// apart from program so that programs without metrics do not carry Prometheus's client.
package buildinfo

import (
	"cmp"
	"net/http"
	"net/http/pprof"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"

	"tallyroll/internal/platform/release"
	"tallyroll/internal/platform/setting"
)

// NewRegistry returns a registry with the metrics that every program has.
func NewRegistry() *prometheus.Registry {
	out := prometheus.NewRegistry()
	out.MustRegister(buildInfo(), certificateEnds{}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return out
}

// buildInfo returns the gauge tallyroll_build_info, which is 1, with labels of what runs.
func buildInfo() prometheus.Collector {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tallyroll_build_info", Help: "1. The labels say which release runs, from which commit, and which " +
			"release of Go built it.",
		ConstLabels: prometheus.Labels{"version": release.Version(), "revision": cmp.Or(release.Revision(), "unknown"),
			"goversion": runtime.Version()},
	})
	info.Set(1)
	return info
}

// certificateEnds collects the ends of the certificates in use.
type certificateEnds struct{}

var certificateEnd = prometheus.NewDesc("tallyroll_certificate_end_timestamp_seconds", "When a certificate in use "+
	"ends (Unix time), by the setting that names it.", []string{"setting"}, nil)

func (certificateEnds) Describe(descs chan<- *prometheus.Desc) { descs <- certificateEnd }

func (certificateEnds) Collect(metrics chan<- prometheus.Metric) {
	setting.EachCertificateEnd(func(key string, end time.Time) {
		metrics <- prometheus.MustNewConstMetric(certificateEnd, prometheus.GaugeValue, float64(end.Unix()), key)
	})
}

// NATSUp registers the gauge tallyroll_nats_up and returns the function that sets it. The gauge has no series
// before the first call.
func NATSUp(registry prometheus.Registerer) (set func(up bool)) {
	gauge := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "tallyroll", Name: "nats_up",
		Help: "1 if NATS answers this program's pings, 0 if not."}, nil)
	registry.MustRegister(gauge)
	return func(up bool) {
		value := 0.0
		if up {
			value = 1
		}
		gauge.WithLabelValues().Set(value)
	}
}

func RouteMetrics(mux *http.ServeMux, registry *prometheus.Registry) {
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
}

// RouteProfiles serves Go's profiles at /debug/pprof/. A client that reaches them can keep a
// processor busy, so they belong to an address that clients do not reach.
func RouteProfiles(mux *http.ServeMux) {
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("POST /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
}

// Native makes a histogram native, too, for a Prometheus that asks for it: its buckets are at most 10 %
// apart, and at most 100. Others get the classic buckets.
func Native(opts prometheus.HistogramOpts) prometheus.HistogramOpts {
	opts.NativeHistogramBucketFactor, opts.NativeHistogramMaxBucketNumber = 1.1, 100
	opts.NativeHistogramMinResetDuration = time.Hour
	return opts
}

// NewFiles returns the files that a program reads again while it runs, and registers their metrics:
// tallyroll_last_reload_successful and tallyroll_reloads_total.
func NewFiles(registry prometheus.Registerer, log zerolog.Logger) *setting.Files {
	lasts := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "tallyroll", Name: "last_reload_successful",
		Help: "1 if what was read last of a file is in use, 0 if it could not be used and what was read before stays.",
	}, []string{"what"})
	total := prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "tallyroll", Name: "reloads_total",
		Help: "Times that a file was read again, by result: ok, or failed if it could not be used.",
	}, []string{"what", "result"})
	registry.MustRegister(lasts, total)
	return setting.NewFiles(log, func(what string) func(error) {
		last := lasts.WithLabelValues(what)
		ok, failed := total.WithLabelValues(what, "ok"), total.WithLabelValues(what, "failed")
		last.Set(1)
		return func(err error) {
			if err != nil {
				last.Set(0)
				failed.Inc()
				return
			}
			last.Set(1)
			ok.Inc()
		}
	})
}
