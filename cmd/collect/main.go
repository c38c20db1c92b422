// Collect takes hits over HTTP and publishes them to NATS JetStream. Run as many as you need.
//
//	HTTP ─▶ collect (check, gather, publish) ─▶ JetStream ─▶ ingest
package main

import (
	"context"
	"os"

	"tallyroll/internal/collect"
	"tallyroll/internal/platform/program"
	"tallyroll/internal/web"
)

func main() {
	var settings collect.Settings
	if !program.Flags("collect", "takes hits over HTTP and publishes them to NATS JetStream.", &settings) {
		return
	}
	program.MainWithReload("collect", &settings, func(ctx context.Context, reload <-chan os.Signal) error {
		web.AllocateBallast()
		return collect.Run(ctx, settings, settings.Log.New(os.Stderr), reload)
	})
}
