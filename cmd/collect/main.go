// Collect takes hits over HTTP and publishes them to NATS JetStream, for producers that
// do not speak NATS. Run as many as you need.
//
//	HTTP ─▶ collect (check, gather, publish) ─▶ JetStream ─▶ ingest
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"tallyroll/internal/boot"
	"tallyroll/internal/collect"
)

func main() {
	var settings collect.Settings
	if !boot.Flags("collect", "takes hits over HTTP and publishes them to NATS JetStream.", &settings) {
		return
	}
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP)
	boot.Main("collect", func(ctx context.Context) error {
		boot.TakeBallast()
		if err := boot.Parse(&settings); err != nil {
			return err
		}
		return collect.Run(ctx, settings, settings.Log.New(os.Stderr), reload)
	})
}
