package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"tallyroll/internal/platform/program"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/worker"
)

func retierMode(settings *worker.Settings) program.Mode {
	var order string
	return program.Mode{
		Name: "retier",
		Help: "TIERS changes the tiers of the namespace, with all workers stopped, and keeps the old ones until " +
			"--retier confirm deletes them; there is no way back, so back up Redis first; exit code 0 if it is done, " +
			"1 if it failed and can be run again, 2 if it is refused.",
		Reads: "all tiers are one argument, comma-separated",
		Flags: func(fs *program.FlagSet) {
			fs.Add("retier", "", "", func(text string) error {
				if order = text; strings.TrimSpace(order) == "" {
					return errors.New("must be tiers such as '1s/1m,1m/1h,15m/1d,1h/32d,1d/5y', or confirm")
				}
				return nil
			})
		},
		Run: func() (int, error) {
			return setting.ExitOK, changeNamespace(settings, func(ctx context.Context) error {
				return worker.Retier(ctx, *settings, order, os.Stdout, settings.Log.New(os.Stderr))
			})
		},
	}
}

func completeFromMode(settings *worker.Settings) program.Mode {
	var from, by string
	return program.Mode{
		Name: "complete-from",
		Help: "TIME [--by NAME] declares that older hits were imported, and that none is missing from TIME on (a " +
			"date, or an RFC 3339 time): answers from then on are complete, unless a loss is known; workers may run; " +
			"none takes it back; exit code 0 if it is done, 1 if it failed, or is done and does not cover answers " +
			"that it names, 2 if it is refused.",
		Reads: "must be a date, an RFC 3339 time or none, and then --by NAME",
		Flags: func(fs *program.FlagSet) {
			fs.StringVar(&from, "complete-from", "", "")
			fs.StringVar(&by, "by", "", "")
		},
		Run: func() (int, error) {
			return setting.ExitOK, changeNamespace(settings, func(ctx context.Context) error {
				return worker.DeclareComplete(ctx, *settings, from, by, os.Stdout, settings.Log.New(os.Stderr))
			})
		},
	}
}

// changeNamespace reads the settings, and calls change until a signal ends it.
func changeNamespace(settings *worker.Settings, change func(context.Context) error) error {
	if err := setting.Parse(settings); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return change(ctx)
}
