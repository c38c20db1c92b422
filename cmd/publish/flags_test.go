package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/boot"
	"tallyroll/internal/hit"
)

func TestParseFlags(t *testing.T) {
	t.Parallel()
	cases := []struct {
		args string
		err  string // part of it; empty: good
	}{
		{args: ""},
		{args: "--format ndjson --rebase now --speed 10 --batch 1"},
		{args: "--rebase 2026-11-21T10:00:00Z"},
		{args: "--counters 5 --zipf 1.1 --rate 100 --duration 10s --count 7"},
		{args: "--nope", err: "-nope"},
		{args: "stray", err: `unexpected argument "stray"`},
		{args: "--batch 0", err: "1 to 10000"},
		{args: "--batch many", err: "1 to 10000"},
		{args: "--format csv", err: "combined, ndjson or lines"},
		{args: "--key agent", err: "path, url, host, status or method"},
		{args: "--rebase tomorrow", err: "allowed is now"},
		{args: "--rebase 0000-12-31T23:59:59Z", err: "allowed is now"},
		{args: "--rebase 0001-01-01T00:00:00+00:01", err: "allowed is now"},
		{args: "--max-names 0", err: "1 to 1000000000"},
		{args: "--counters 5 --max-names 3", err: "--max-names is about standard input"},
		{args: "--speed 0", err: "above 0"},
		{args: "--speed NaN", err: "above 0"},
		{args: "--zipf 0.5", err: "above 1"},
		{args: "--subject hits.>", err: "without wildcards"},
		{args: "--subject hits..a", err: "without wildcards"},
		{args: "--duration -1s", err: "above 0"},
		{args: "--counters 5 --rebase now", err: "--rebase is about standard input"},
		{args: "--format lines --speed 3", err: "needs hits with times"},
		{args: "--ts now", err: "-ts: see publish --help"},
		{args: "--format lines --key host", err: "belongs to --format combined"},
		{args: "--format ndjson --unique host", err: "--unique belongs to --format combined, not to --format ndjson"},
		{args: "--unique agent", err: "path, url, host, status or method"},
		{args: "--key path --unique host"},
	}
	for _, c := range cases {
		t.Run(c.args, func(t *testing.T) {
			_, err := parse(strings.Fields(c.args)...)
			if c.err == "" {
				require.NoError(t, err)
				return
			}
			var usage boot.UsageError
			if !errors.As(err, &usage) || !strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("error %q, want a usage error of one line with %q", err, c.err)
			}
		})
	}
}

func TestHelpNamesFlagsAndVariables(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"--help"}, nil, &out, &out))
	for _, want := range []string{"--rebase", "--batch", "200", "hits.publish", "NATS_URL", "nats://127.0.0.1:4222"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("help does not say %q", want)
		}
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	r := report{tally: tally{hits: 10000, messages: 50}, took: 210 * time.Millisecond}
	if got, want := r.String(), "published 10000 hits in 50 messages in 0.21 s (47619 hits/s); skipped 0 bad lines"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	r.bad = badLines{count: 3, first: 8899, reason: errNoRequest}
	if got := r.String(); !strings.HasSuffix(got, "; skipped 3 bad lines (first: line 8899: no request in quotes)") {
		t.Error(got)
	}
}

// The year 1 is a moment like any other, and not "when the log has been read".
func TestRebaseToTheFirstMoment(t *testing.T) {
	t.Parallel()
	if o := mustParse(t, "--rebase", "0001-01-01T00:00:00Z"); o.rebase != (rebaseTo{on: true, at: hit.MinTime}) {
		t.Errorf("%+v", o.rebase)
	}
	if o := mustParse(t, "--rebase", "now"); o.rebase != (rebaseTo{on: true, at: hit.NoTime}) {
		t.Errorf("%+v", o.rebase)
	}
}
