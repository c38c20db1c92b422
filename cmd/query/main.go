// Query answers questions about counters over HTTP, from what ingest has counted into Redis. Run as many as
// you need.
//
//	HTTP ─▶ query (check, plan, answer) ─▶ window (read) ─▶ Redis
package main

import (
	"context"
	"os"

	"tallyroll/internal/boot"
	"tallyroll/internal/query"
)

func main() {
	var settings query.Settings
	if !boot.Flags("query", "answers questions about counters over HTTP, from Redis.", &settings) {
		return
	}
	boot.MainWithReload("query", &settings, func(ctx context.Context, reload <-chan os.Signal) error {
		boot.TakeBallast()
		return query.Run(ctx, settings, settings.Log.New(os.Stderr), reload)
	})
}
