// Watch compares counters with thresholds and delivers each change once. Run as many as you need: one
// evaluates, all deliver, and another takes over if one is lost.
//
//	Redis ─▶ watch (evaluate) ─▶ JetStream (states, history, outbox)
//	                                       └─▶ watch (deliver) ─▶ webhooks, Alertmanager, NATS
package main

import (
	"context"
	"os"

	"tallyroll/internal/platform/program"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/watch"
)

func main() {
	var settings watch.Settings
	try := program.Mode{
		Name:  "try",
		Help:  "prints what each rule of WATCH_FILE reads now, and exits.",
		Reads: "rules are read from WATCH_FILE",
		Run: func() (int, error) {
			if err := setting.Parse(&settings); err != nil {
				return setting.ExitUsage, err
			}
			return setting.ExitOK, watch.Try(context.Background(), settings, os.Stdout)
		},
	}
	const about = "compares counters with thresholds, and notifies people and programs of each change."
	if !program.Flags("watch", about, &settings, try) {
		return
	}
	program.MainWithReload("watch", &settings, func(ctx context.Context, reload <-chan os.Signal) error {
		return watch.Run(ctx, settings, settings.Log.New(os.Stderr), reload)
	})
}
