package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"tallyroll/internal/boot"
)

func main() {
	var settings Settings
	if !boot.Flags("rls", "answers Envoy's global rate limit protocol (RateLimitService v3, gRPC) from the limits of a file, with Redis.", &settings) {
		return
	}
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP)
	boot.Main("rls", func(ctx context.Context) error {
		boot.QuietRedis()
		if err := boot.Parse(&settings); err != nil {
			return err
		}
		return run(ctx, settings, settings.Log.New(os.Stderr), reload)
	})
}
