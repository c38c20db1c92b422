package main

import (
	"bytes"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/hit"
	"tallyroll/internal/platform/setting"
	"tallyroll/tests/cases"
)

func TestFlagsAreReadOrRefused(t *testing.T) {
	t.Parallel()
	cases.Check(t, "flags", func(t *testing.T, _, args string) string {
		_, err := parse(strings.Fields(args)...)
		if err == nil {
			return "good"
		}
		var usage setting.UsageError
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

func TestReportSaysHitsMessagesAndBadLines(t *testing.T) {
	t.Parallel()
	r := report{tally: tally{hits: 10000, messages: 50}, took: 210 * time.Millisecond}
	require.Equal(t, "published 10000 hits in 50 messages in 0.21 s (47619 hits/s); skipped 0 bad lines", r.String())
	r.bad = badLines{count: 3, first: 8899, reason: errNoRequest}
	require.Contains(t, r.String(), "; skipped 3 bad lines (first: line 8899: no request in quotes)")
}

// The year 1 is a moment like any other, and not "when the log has been read".
func TestRebaseToTheFirstMomentIsNotRebaseToNow(t *testing.T) {
	t.Parallel()
	require.Equal(t, rebaseTo{on: true, at: hit.MinTime}, mustParse(t, "--rebase", "0001-01-01T00:00:00Z").rebase)
	require.Equal(t, rebaseTo{on: true, at: hit.NoTime}, mustParse(t, "--rebase", "now").rebase)
}

func sleepUntil(t time.Time) error {
	time.Sleep(time.Until(t))
	return nil
}

func TestSyntheticLoadHasItsRateDurationAndCount(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name string
		load synthetic
		hits int
		took time.Duration
	}{
		{"rate and duration", synthetic{counters: 10, rate: 1000, duration: 3 * time.Second}, 3000, 3 * time.Second},
		{"slow rate", synthetic{counters: 10, rate: 0.5, duration: 10 * time.Second}, 5, 10 * time.Second},
		{"count first", synthetic{counters: 10, rate: 1000, duration: time.Minute, count: 500}, 500, 500 * time.Millisecond},
		{"count as fast as possible", synthetic{counters: 10, count: 1001}, 1001, 0},
		{"Zipf", synthetic{counters: 10, zipf: 1.1, count: 1000}, 1000, 0},
		{"one counter by Zipf", synthetic{counters: 1, zipf: 2, count: 10}, 10, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				seen := map[string]bool{}
				hits := 0
				err := c.load.run(func(h hit.Hit) error {
					hits++
					seen[string(h.Counter)] = true
					if h.At != hit.NoTime || h.N != 1 {
						t.Fatalf("%+v", h)
					}
					return nil
				}, sleepUntil)
				require.NoError(t, err)
				require.Equal(t, c.hits, hits)
				require.Equal(t, c.took, time.Since(start))
				for key := range seen {
					n, err := strconv.ParseInt(key[len("api-"):], 10, 64)
					if err != nil || n < 1 || n > c.load.counters {
						t.Errorf("counter %q", key)
					}
				}
			})
		})
	}
}

func TestPaceFollowsTheTimesOfHits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &pacer{speed: 10, wait: sleepUntil}
		start := time.Now()
		for _, step := range []struct {
			ts   int64
			want time.Duration
		}{{50_000, 0}, {51_000, 100 * time.Millisecond}, {hit.NoTime, 100 * time.Millisecond}, {40_000, 100 * time.Millisecond}, {60_000, time.Second}} {
			require.NoError(t, p.pace(hit.Hit{At: step.ts}))
			require.EqualValues(t, step.want, time.Since(start), step.ts)
		}
	})
}
