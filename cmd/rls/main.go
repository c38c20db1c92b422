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
	translating := program.Mode{Name: "translate", Help: "FILE... prints files of envoyproxy/ratelimit as a file of " +
		"limits: exit code 2 if one has a mistake, or would limit less here.", Files: translate}
	if !program.Flags("rls", about, &settings, translating) {
		return
	}
	program.MainWithReload("rls", &settings, func(ctx context.Context, reload <-chan os.Signal) error {
		return run(ctx, settings, settings.Log.New(os.Stderr), reload)
	})
}
