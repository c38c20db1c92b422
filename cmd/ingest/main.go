// Ingest is the worker: it counts the hits of JetStream streams into rolling windows in Redis. Run as many as
// you need.
//
//	NATS JetStream ─▶ consume (decode, coalesce) ─▶ window (commit) ─▶ Redis
package main

import (
	"context"
	"os"

	"tallyroll/internal/platform/program"
	"tallyroll/internal/platform/progress"
	"tallyroll/internal/worker"
)

func main() {
	var settings worker.Settings
	const about = "counts the hits of NATS JetStream streams into rolling windows in Redis."
	modes := []program.Mode{new(trying).mode(&settings), retierMode(&settings), completeFromMode(&settings)}
	if !program.Flags("ingest", about, &settings, modes...) {
		return
	}
	program.MainWithReload("ingest", &settings, func(ctx context.Context, reload <-chan os.Signal) error {
		screen := progress.NewScreen(os.Stderr, "messages")
		return worker.Run(ctx, settings, settings.Log.New(screen), screen.Progress, reload)
	})
}
