// Query answers questions about counters over HTTP, from what ingest has
// counted into Redis. Run as many as you need.
//
//	HTTP ─▶ query (check, plan, answer) ─▶ window (read) ─▶ Redis
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"tallyroll/internal/boot"
	"tallyroll/internal/query"
)

func main() {
	var settings query.Settings
	if !boot.Flags("query", "answers questions about counters over HTTP, from Redis.", &settings) {
		return
	}
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP)
	boot.Main("query", func(ctx context.Context) error {
		boot.QuietRedis()
		boot.TakeBallast()
		if err := boot.Parse(&settings); err != nil {
			return err
		}
		return query.Run(ctx, settings, settings.Log.New(os.Stderr), reload)
	})
}
