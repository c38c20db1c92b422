// Ingest is the worker: it counts the hits of JetStream streams into rolling
// windows in Redis. Start as many as there is work for.
//
//	NATS JetStream ─▶ consume (decode, coalesce) ─▶ window (commit) ─▶ Redis
package main

import (
	"context"
	"os"

	"tallyroll/internal/boot"
	"tallyroll/internal/consume"
)

func main() {
	var settings consume.Settings
	if !boot.Flags("ingest", "counts the hits of NATS JetStream streams into rolling windows in Redis.", &settings) {
		return
	}
	boot.Main("ingest", func(ctx context.Context) error {
		boot.QuietRedis()
		if err := boot.Parse(&settings); err != nil {
			return err
		}
		screen := boot.NewScreen(os.Stderr, boot.Words{Items: "messages", End: "caught up"})
		return consume.Run(ctx, settings, settings.Log.New(screen), screen.Progress)
	})
}
