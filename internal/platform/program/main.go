// Package program runs a program from its first argument to its exit code: flags, signals, the log, and the
// health check of an image.
package program

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"tallyroll/internal/platform/setting"
	"tallyroll/internal/platform/systemd"
)

// repeatedWithin is how long after the first signal further ones count as the same request. GNU timeout, for
// example, signals its child and then the child's whole group.
const repeatedWithin = time.Second

// Main runs a program until SIGINT or SIGTERM cancels its context, prints its error and exits. A second
// signal, later than repeatedWithin after the first, ends the process at once.
func Main(program string, run func(ctx context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	// A signal for which there is no room comes within repeatedWithin of one that had room.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		awaitSignals(signals, func() {
			systemd.Notify("STOPPING=1")
			cancel()
		})
		fmt.Fprintf(os.Stderr, "%s: a second signal: ended at once\n", program)
		os.Exit(setting.ExitAtOnce)
	}()
	err := run(ctx)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %s\n", program, describe(ctx, err))
	}
	os.Exit(setting.ExitCode(err))
}

// MainWithReload is Main for a program that parses its settings, and rereads files when run receives SIGHUP.
func MainWithReload(program string, settings any, run func(ctx context.Context, reload <-chan os.Signal) error) {
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP)
	Main(program, func(ctx context.Context) error {
		if err := setting.Parse(settings); err != nil {
			return err
		}
		return run(ctx, reload)
	})
}

// awaitSignals stops the program at the first signal, and returns at a second one.
func awaitSignals(signals <-chan os.Signal, stop func()) {
	<-signals
	first := time.Now()
	stop()
	for range signals {
		if time.Since(first) > repeatedWithin {
			return
		}
	}
}

// describe returns an error's text, in which the end of ctx is called an interrupt.
func describe(ctx context.Context, err error) string {
	if ctx.Err() == nil {
		return err.Error()
	}
	return strings.ReplaceAll(err.Error(), ctx.Err().Error(), "interrupted")
}

// PrintLast prints the last line of a program that ends with err. It returns err, or else the print error.
func PrintLast(out io.Writer, line any, err error) error {
	if _, failed := fmt.Fprintln(out, line); err == nil && failed != nil {
		return fmt.Errorf("print the last line: %w", failed)
	}
	return err
}

// Outlive returns a context that ends by after ctx does. Call end when it is no longer needed.
func Outlive(ctx context.Context, by time.Duration) (after context.Context, end func()) {
	after, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-time.After(by):
			cancel()
		case <-after.Done():
		}
	})
	return after, func() {
		stop()
		cancel()
	}
}
