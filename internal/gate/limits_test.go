package gate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/boot"
	"tallyroll/internal/buildinfo"
)

// Limits that are read again take the place of those before.
func TestReload(t *testing.T) {
	t.Parallel()
	l, rewrite := limitsIn(t, "limits:\n  - {name: login, window: 1m, max: 5}\n")
	rewrite("limits:\n  - {name: new, window: 1m, max: 1}\n")
	if _, err := l.find("new", "limit"); err != nil || (*l.usages.Load())["new"] == nil {
		t.Error(err)
	}
	if _, err := l.find("login", "limit"); err == nil || (*l.usages.Load())["login"] != nil {
		t.Error("a limit that is gone from the file is there")
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
			require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		} else {
			_ = os.Remove(file)
		}
		_, err := newLimits(TakeNamed, file, noFiles())
		var usage boot.UsageError
		if !errors.As(err, &usage) || !strings.HasPrefix(err.Error(), "QUERY_LIMITS_FILE: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
	}
}

// The error about an unknown limit lists a few that are known, however many there are.
func TestUnknownLimit(t *testing.T) {
	t.Parallel()
	l, rewrite := limitsIn(t, "limits:\n  - {name: login, window: 1m, max: 5}\n")
	var file strings.Builder
	file.WriteString("limits:\n")
	for i := range 25 {
		fmt.Fprintf(&file, "  - {name: limit-%02d, window: 1m, max: 1}\n", i)
	}
	rewrite(file.String())
	_, err := l.find("x", "limit")
	if err == nil || !strings.Contains(err.Error(), "limit-00, limit-01") || strings.Contains(err.Error(), "limit-20") || !strings.Contains(err.Error(), "and 5 more") {
		t.Errorf("the error says %v", err)
	}
}

func noFiles() *boot.Files {
	return buildinfo.NewFiles(prometheus.NewRegistry(), zerolog.Nop())
}

// limitsIn are those of a file with this text; rewrite gives it another.
func limitsIn(t *testing.T, text string) (l *limits, rewrite func(text string)) {
	t.Helper()
	file, files := filepath.Join(t.TempDir(), "limits.yml"), noFiles()
	write := func(text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	write(text)
	l, err := newLimits(TakeNamed, file, files)
	require.NoError(t, err)
	return l, func(text string) { write(text); files.Reload() }
}
