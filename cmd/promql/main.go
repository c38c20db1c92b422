// Promql serves Prometheus's query API, for Grafana's built-in data source, from the counters of a namespace.
// It is a Go module of its own, because the engine brings many others along.
//
//	HTTP ─▶ limiter ─▶ parameters, bounds ─▶ promql.Engine ─▶ querier (totals, cells) ─▶ window ─▶ Redis
package main

import (
	"context"
	"os"

	"tallyroll/internal/platform/program"
)

func main() {
	var settings Settings
	if !program.Flags("promql", "answers PromQL about counters over Prometheus's HTTP API, from Redis.", &settings) {
		return
	}
	program.MainWithReload("promql", &settings, func(ctx context.Context, reload <-chan os.Signal) error {
		return run(ctx, settings, settings.Log.New(os.Stderr), reload)
	})
}
