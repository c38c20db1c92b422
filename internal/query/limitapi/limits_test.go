package limitapi

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/platform/buildinfo"
	"tallyroll/internal/platform/setting"
)

// Limits that are read again take the place of those before.
func TestReloadedLimitsReplaceThoseBefore(t *testing.T) {
	t.Parallel()
	l, rewrite := limitsIn(t, "limits:\n  - {name: login, window: 1m, max: 5}\n")
	rewrite("limits:\n  - {name: new, window: 1m, max: 1}\n")
	_, err := l.lookup(nil, "new", "limit")
	require.NoError(t, err)
	require.Contains(t, *l.usages.Load(), "new")
	_, err = l.lookup(nil, "login", "limit")
	require.Error(t, err)
	require.NotContains(t, *l.usages.Load(), "login")
}

func TestBadLimitsFileIsNamedInTheError(t *testing.T) {
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
		var usage setting.UsageError
		if !errors.As(err, &usage) || !strings.HasPrefix(err.Error(), "QUERY_LIMITS_FILE: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
	}
}

// The error about an unknown limit lists a few that are known, however many there are.
func TestUnknownLimitListsAFewThatAreKnown(t *testing.T) {
	t.Parallel()
	l, rewrite := limitsIn(t, "limits:\n  - {name: login, window: 1m, max: 5}\n")
	var file strings.Builder
	file.WriteString("limits:\n")
	for i := range 25 {
		fmt.Fprintf(&file, "  - {name: limit-%02d, window: 1m, max: 1}\n", i)
	}
	rewrite(file.String())
	_, err := l.lookup(nil, "x", "limit")
	if err == nil || !strings.Contains(err.Error(), "limit-00, limit-01") || strings.Contains(err.Error(), "limit-20") || !strings.Contains(err.Error(), "and 5 more") {
		t.Errorf("the error says %v", err)
	}
}

func noFiles() *setting.Files {
	return buildinfo.NewFiles(prometheus.NewRegistry(), zerolog.Nop())
}

// Takes are served if one can be decided: with numbers, under a named limit, or without Redis where none is
// closed.
func TestWhyNoTakeCanBeDecided(t *testing.T) {
	t.Parallel()
	none, _ := limitsIn(t, "limits: []\n")
	some, _ := limitsIn(t, "limits:\n  - {name: a, window: 1m, max: 5}\n  - {name: b, window: 1m, max: 5, fail: closed}\n")
	closed, _ := limitsIn(t, "limits:\n  - {name: b, window: 1m, max: 5, fail: closed}\n")
	for _, c := range []struct {
		limits      *limits
		mode        TakeMode
		known, lost bool
		why         string
	}{
		{some, TakeNamed, true, true, ""},
		{some, TakeOff, true, false, "QUERY_TAKE=off"},
		{none, TakeNamed, true, false, "names none"},
		{none, TakeAny, true, true, ""},
		{some, TakeNamed, false, false, "not answered yet"},
		{closed, TakeNamed, true, true, "every limit is closed"},
		{closed, TakeNamed, true, false, ""},
	} {
		c.limits.mode = c.mode
		why := (&Service{limits: c.limits}).Why(c.known, c.lost)
		require.Contains(t, why, c.why)
		require.Equal(t, c.why == "", why == "", why)
	}
}
