package gate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"tallyroll/internal/boot"
	"tallyroll/internal/buildinfo"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

func TestReload(t *testing.T) {
	t.Parallel()
	l := limitsIn(t, "limits:\n  - {name: login, window: 1m, max: 5}\n")
	var log asking.Log
	ctx, cancel := context.WithCancel(t.Context())
	signals, ended := make(chan os.Signal), make(chan error, 1)
	go func() { ended <- boot.FollowReloads(ctx, signals, func() { l.reload(zerolog.New(&log)) }) }()
	reload := func(text, message string, n int) {
		t.Helper()
		if err := os.WriteFile(l.file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		signals <- syscall.SIGHUP
		stack.Eventually(t, message, func() (bool, string) { return log.Count(message) == n, "" })
	}
	const kept = "limits not reloaded: they stay as they were"
	reload("limits:\n  - {name: new, window: 1m, max: 1}\n", "limits reloaded", 1)
	if _, err := l.find("new", "limit"); err != nil {
		t.Error(err)
	}
	if _, err := l.find("login", "limit"); err == nil {
		t.Error("a limit that is gone from the file is there")
	}
	reload("limits:\n  - {name: bad, window: 1m, max: 0}\n", kept, 1)
	if err := os.Remove(l.file); err != nil {
		t.Fatal(err)
	}
	signals <- syscall.SIGHUP
	stack.Eventually(t, "the missing file to be logged", func() (bool, string) { return log.Count(kept) == 2, "" })
	if _, err := l.find("new", "limit"); err != nil {
		t.Errorf("after a bad file: %v", err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if said := log.String(); !strings.Contains(said, l.file+": line 2: max") || !strings.Contains(said, `"limits":1`) {
		t.Errorf("the log says %s", said)
	}
}

func TestNothingToReload(t *testing.T) {
	t.Parallel()
	l, err := newLimits(TakeNamed, "", reloads())
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	l.reload(zerolog.New(&log))
	if !strings.Contains(log.String(), "nothing to reload") {
		t.Errorf("the log says %s", &log)
	}
}

func TestABadLimitsFile(t *testing.T) {
	t.Parallel()
	file := t.TempDir() + "/limits.yml"
	for text, want := range map[string]string{
		"":                                  "no such file",
		"limits:\n  - {name: a, window: 1m": ": line ",
		"limits:\n  - {name: a, window: 1m, max: 5}\n  - {name: b, window: 1, max: 5}\n": file + ": line 3: window: ",
	} {
		if text != "" {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		} else {
			_ = os.Remove(file)
		}
		_, err := newLimits(TakeNamed, file, reloads())
		var usage boot.UsageError
		if !errors.As(err, &usage) || !strings.HasPrefix(err.Error(), "QUERY_LIMITS_FILE: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
	}
}

// The error about an unknown limit lists a few that are known, however many there are.
func TestUnknownLimit(t *testing.T) {
	t.Parallel()
	l := limitsIn(t, "limits:\n  - {name: login, window: 1m, max: 5}\n")
	var file strings.Builder
	file.WriteString("limits:\n")
	for i := range 25 {
		fmt.Fprintf(&file, "  - {name: limit-%02d, window: 1m, max: 1}\n", i)
	}
	if err := os.WriteFile(l.file, []byte(file.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	l.reload(zerolog.Nop())
	_, err := l.find("x", "limit")
	if err == nil || !strings.Contains(err.Error(), "limit-00, limit-01") || strings.Contains(err.Error(), "limit-20") || !strings.Contains(err.Error(), "and 5 more") {
		t.Errorf("the error says %v", err)
	}
}

func reloads() buildinfo.Reloads { return buildinfo.NewReloads(prometheus.NewRegistry()) }

// limitsIn are those of a file with this text.
func limitsIn(t *testing.T, text string) *limits {
	t.Helper()
	file := filepath.Join(t.TempDir(), "limits.yml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := newLimits(TakeNamed, file, reloads())
	if err != nil {
		t.Fatal(err)
	}
	return out
}
