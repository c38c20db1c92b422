// Ingest is the worker: it counts the hits of JetStream streams into rolling
// windows in Redis. Run as many workers as you need.
//
//	NATS JetStream ─▶ consume (decode, coalesce) ─▶ window (commit) ─▶ Redis
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"tallyroll/internal/boot"
	"tallyroll/internal/worker"
)

func main() {
	var settings worker.Settings
	if !boot.Flags("ingest", "counts the hits of NATS JetStream streams into rolling windows in Redis.", &settings, tryMode(&settings), retierMode(&settings)) {
		return
	}
	boot.Main("ingest", func(ctx context.Context) error {
		boot.QuietRedis()
		if err := boot.Parse(&settings); err != nil {
			return err
		}
		var reload chan os.Signal
		if settings.Rules != "" || boot.Managed() { // otherwise the signal does what it does to any program
			reload = make(chan os.Signal, 1)
			signal.Notify(reload, syscall.SIGHUP)
		}
		screen := boot.NewScreen(os.Stderr, "messages")
		return worker.Run(ctx, settings, settings.Log.New(screen), screen.Progress, reload)
	})
}
