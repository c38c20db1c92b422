package boot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"
)

const (
	ExitOK      = 0
	ExitFailure = 1   // it could not go on
	ExitUsage   = 2   // a bad setting or flag, or a namespace that was made with other settings
	ExitAtOnce  = 130 // a second signal did not let it finish
)

// UsageError marks an error that starting the program differently can fix. The program exits with ExitUsage.
type UsageError struct{ Err error }

func (e UsageError) Error() string { return e.Err.Error() }
func (e UsageError) Unwrap() error { return e.Err }

// sameRequest is how long after the first signal further ones count as the same request. GNU timeout, for
// example, signals its child and then the child's whole group.
const sameRequest = time.Second

// Main runs a program until SIGINT or SIGTERM cancels its context, prints its error and exits. A second
// signal, later than sameRequest after the first, ends the process at once.
func Main(program string, run func(ctx context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 1) // a signal for which there is no room comes within sameRequest of one that had room
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		obey(signals, func() {
			Notify("STOPPING=1")
			cancel()
		})
		fmt.Fprintf(os.Stderr, "%s: a second signal: ended at once\n", program)
		os.Exit(ExitAtOnce)
	}()
	err := run(ctx)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", program, err)
	}
	os.Exit(exitCode(err))
}

// MainWithReload is Main for a program that parses its settings, and rereads files when run receives SIGHUP.
func MainWithReload(program string, settings any, run func(ctx context.Context, reload <-chan os.Signal) error) {
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP)
	Main(program, func(ctx context.Context) error {
		if err := Parse(settings); err != nil {
			return err
		}
		return run(ctx, reload)
	})
}

// obey stops the program at the first signal, and returns at a second one.
func obey(signals <-chan os.Signal, stop func()) {
	<-signals
	first := time.Now()
	stop()
	for range signals {
		if time.Since(first) > sameRequest {
			return
		}
	}
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

func exitCode(err error) int {
	var setting *SettingError
	var usage UsageError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &setting), errors.As(err, &usage):
		return ExitUsage
	}
	return ExitFailure
}

// version is set by the linker for releases: -X tallyroll/internal/boot.version=v1.2.3
var version string

// Version is the release, or else the revision.
func Version() string {
	if version != "" {
		return version
	}
	if _, ok := debug.ReadBuildInfo(); !ok {
		return "unknown"
	}
	return cmp.Or(Revision(), "development")
}

// revision is set by the linker for builds outside of a repository: -X tallyroll/internal/boot.revision=…
var revision string

// Revision is the commit that the binary was built from, with +dirty if there were other changes; "" if it
// was not built from a repository.
func Revision() string {
	info, ok := debug.ReadBuildInfo()
	if revision != "" || !ok {
		return revision
	}
	return revisionOf(info)
}

func revisionOf(info *debug.BuildInfo) string {
	commit, dirty := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+dirty"
		}
	}
	if commit == "" {
		return ""
	}
	return commit + dirty
}
