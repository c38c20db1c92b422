// Query answers questions about counters over HTTP, from what ingest has counted into Redis. Run as many as
// you need.
//
//	HTTP ─▶ query (check, plan, answer) ─▶ window (read) ─▶ Redis
package main

import (
	"context"
	"os"

	"tallyroll/internal/platform/program"
	"tallyroll/internal/query"
	"tallyroll/internal/web"
)

func main() {
	var settings query.Settings
	if !program.Flags("query", "answers questions about counters over HTTP, from Redis.", &settings) {
		return
	}
	program.MainWithReload("query", &settings, func(ctx context.Context, reload <-chan os.Signal) error {
		web.AllocateBallast()
		return query.Run(ctx, settings, settings.Log.New(os.Stderr), reload)
	})
}
