package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/boot"
	"tallyroll/internal/hit"
	"tallyroll/tests/cases"
)

func TestParseFlags(t *testing.T) {
	t.Parallel()
	cases.Check(t, "flags", func(t *testing.T, _, args string) string {
		_, err := parse(strings.Fields(args)...)
		if err == nil {
			return "good"
		}
		var usage boot.UsageError
		require.ErrorAs(t, err, &usage, args)
		return err.Error()
	})
}

func TestHelpNamesFlagsAndVariables(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"--help"}, nil, &out, &out))
	for _, want := range []string{"--rebase", "--batch", "200", "hits.publish", "NATS_URL", "nats://127.0.0.1:4222"} {
		require.Contains(t, out.String(), want)
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	r := report{tally: tally{hits: 10000, messages: 50}, took: 210 * time.Millisecond}
	require.Equal(t, "published 10000 hits in 50 messages in 0.21 s (47619 hits/s); skipped 0 bad lines", r.String())
	r.bad = badLines{count: 3, first: 8899, reason: errNoRequest}
	require.Contains(t, r.String(), "; skipped 3 bad lines (first: line 8899: no request in quotes)")
}

// The year 1 is a moment like any other, and not "when the log has been read".
func TestRebaseToTheFirstMoment(t *testing.T) {
	t.Parallel()
	require.Equal(t, rebaseTo{on: true, at: hit.MinTime}, mustParse(t, "--rebase", "0001-01-01T00:00:00Z").rebase)
	require.Equal(t, rebaseTo{on: true, at: hit.NoTime}, mustParse(t, "--rebase", "now").rebase)
}
