package main

import (
	"context"
	"flag"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"tallyroll/internal/program"
	"tallyroll/internal/setting"
	"tallyroll/internal/worker"
)

func retierMode(settings *worker.Settings) program.Mode {
	return program.Mode{
		Name: "retier",
		Help: "TIERS changes the tiers of the namespace, with all workers stopped, and keeps the old ones until --retier confirm deletes them; there is no way back, so back up Redis first; exit code 0 if it is done, 1 if it failed and can be run again, 2 if it is refused.",
		Run: func(args []string) (int, error) {
			order, err := retierOrder(args)
			if err == nil {
				err = setting.Parse(settings)
			}
			if err != nil {
				return 0, err
			}
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return 0, worker.Retier(ctx, *settings, order, os.Stdout, settings.Log.New(os.Stderr))
		},
	}
}

func retierOrder(args []string) (order string, err error) {
	flags := flag.NewFlagSet("retier", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&order, "retier", "", "")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 || strings.TrimSpace(order) == "" {
		return "", setting.BadUsage("--retier: allowed are tiers such as '1s/1m,1m/1h,15m/1d,1h/32d,1d/5y', or confirm: see ingest --help")
	}
	return order, nil
}
