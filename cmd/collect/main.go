// Collect takes hits over HTTP and publishes them to NATS JetStream, for producers that
// do not speak NATS. Run as many as you need.
//
//	HTTP ─▶ collect (check, gather, publish) ─▶ JetStream ─▶ ingest
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime"
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
		defer runtime.KeepAlive(ballast)
		if err := boot.Parse(&settings); err != nil {
			return err
		}
		return collect.Run(ctx, settings, settings.Log.New(os.Stderr), reload)
	})
}

// ballast makes a small heap look larger, so that it is collected less often: requests leave a few kilobytes each,
// and at 25,000 per second a heap of a few megabytes is collected all the time (30 µs of processor per request, of
// which 3 go away). Nobody writes to it, so it takes no memory, and a heap that is large already grows no further.
var ballast = make([]byte, 16<<20)
