// Query answers questions about counters over HTTP, from what ingest has
// counted into Redis. Start as many as there are askers for.
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
	boot.Main("query", func(ctx context.Context) error {
		boot.QuietRedis()
		if err := boot.Parse(&settings); err != nil {
			return err
		}
		return query.Run(ctx, settings, settings.Log.New(os.Stderr))
	})
}
