package main

import (
	"context"
	"os"

	"tallyroll/internal/platform/program"
)

func main() {
	var settings Settings
	const about = "answers Envoy's global rate limit protocol (RateLimitService v3, gRPC) from a file of limits, " +
		"with Redis."
	if !program.Flags("rls", about, &settings) {
		return
	}
	program.MainWithReload("rls", &settings, func(ctx context.Context, reload <-chan os.Signal) error {
		return run(ctx, settings, settings.Log.New(os.Stderr), reload)
	})
}
