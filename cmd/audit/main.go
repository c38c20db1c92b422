// Audit recounts what the streams hold, and compares it with every cell in Redis.
//
//	JetStream ─┐
//	           ├─▶ audit ─▶ differences
//	Redis ─────┘
package main

import (
	"context"
	"os"

	"tallyroll/internal/audit"
	"tallyroll/internal/platform/program"
)

func main() {
	program.Main("audit", func(ctx context.Context) error {
		return audit.Run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	})
}
