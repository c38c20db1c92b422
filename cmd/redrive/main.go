// Redrive publishes again what workers have rejected, each reject once.
//
//	HITS_REJECTED ─▶ redrive ─▶ JetStream ─▶ ingest
package main

import (
	"context"
	"os"

	"tallyroll/internal/platform/program"
	"tallyroll/internal/redrive"
)

func main() {
	program.Main("redrive", func(ctx context.Context) error {
		return redrive.Run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	})
}
