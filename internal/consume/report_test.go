package consume

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/hit"
	"tallyroll/internal/rejects"
	"tallyroll/internal/window"
)

func lines(b *bytes.Buffer) int { return strings.Count(b.String(), "\n") }

// The worker logs the first reject of each reason, and the number of the others once a minute.
func TestFirstRejectOfAReasonIsLogged(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := newRejectLog(zerolog.New(&out))
	now := time.Unix(0, 0)
	some := func(reason hit.Reason, n int) (out []rejects.Reject) {
		for i := range n {
			out = append(out, rejects.New("HITS", 812, 1, hit.Reject{Reason: reason, Detail: "a year\nold", Item: 3 + i}))
		}
		return out
	}
	traced := some(hit.BadJSON, 1)
	traced[0].Trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	l.add(now, append(some(hit.TooLate, 1000), traced...))
	l.report(now, false)
	if got := out.String(); lines(&out) != 2 || !strings.Contains(got, `"reason":"too_late","detail":"a year old","sequence":812,"item":3,"message"`) ||
		!strings.Contains(got, `"item":3,"trace_id":"4bf92f3577b34da6a3ce929d0e0e4736","message"`) {
		t.Errorf("the first of each reason:\n%s", got)
	}
	out.Reset()
	for range 59 {
		now = now.Add(time.Second)
		l.add(now, some(hit.TooLate, 10))
		l.report(now, false)
	}
	if lines(&out) != 0 {
		t.Errorf("within the minute:\n%s", out.String())
	}
	l.report(now.Add(time.Second), false)
	if got := out.String(); lines(&out) != 1 || !strings.Contains(got, `"reason":"too_late","rejected":1589,"within":"1m0s"`) {
		t.Errorf("after a minute:\n%s", got)
	}
	out.Reset()
	l.add(now, some(hit.BadJSON, 2))
	l.report(now, true)
	l.report(now, true)
	if lines(&out) != 1 || !strings.Contains(out.String(), `"rejected":2`) {
		t.Errorf("at the end:\n%s", out.String())
	}
}

func TestClocksThatDisagreeAreLoggedOnce(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	registry := prometheus.NewRegistry()
	c := newClocks(NewMetrics(registry), zerolog.New(&out))
	for i, step := range []struct {
		clock string
		ahead time.Duration
		lines int // of the log by then
	}{
		{clockNATS, 1500 * time.Millisecond, 0},
		{clockRedis, 2 * time.Second, 0},
		{clockRedis, 40 * time.Second, 1},
		{clockRedis, 41 * time.Second, 1},
		{clockRedis, 1900 * time.Millisecond, 1}, // not yet agreed again
		{clockRedis, time.Second, 1},             // but NATS is 1.5 s off
		{clockNATS, 100 * time.Millisecond, 2},
		{clockNATS, -1500 * time.Millisecond, 3}, // from Redis, which is ahead by a second
	} {
		c.observe(step.clock, step.ahead)
		if lines(&out) != step.lines {
			t.Errorf("step %d: %d lines, want %d:\n%s", i, lines(&out), step.lines, out.String())
		}
	}
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() != "tallyroll_ingest_clock_difference_seconds" {
			continue
		}
		for _, m := range f.GetMetric() {
			if clock := m.GetLabel()[0].GetValue(); clock == clockNATS && m.GetGauge().GetValue() != -1.5 {
				t.Errorf("the metric of %s is %v", clock, m.GetGauge().GetValue())
			}
		}
	}
}

func TestClockIsAheadBeyondTheRoundTrip(t *testing.T) {
	t.Parallel()
	at := time.Unix(1000, 0)
	for _, test := range []struct{ server, want time.Duration }{
		{0, 0}, {time.Second, 0}, {500 * time.Millisecond, 0}, {1500 * time.Millisecond, 500 * time.Millisecond}, {-time.Minute, -time.Minute},
	} {
		if got := window.ClockAhead(at.Add(test.server), at, at.Add(time.Second)); got != test.want {
			t.Errorf("a clock that showed %s after the asking, with a round trip of 1s: %s, want %s", test.server, got, test.want)
		}
	}
}

func TestLongWaitsAreNamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := NewWaits()
		is := func(parts ...string) {
			t.Helper()
			got := w.Longest()
			for _, part := range parts {
				if !strings.Contains(got, part) {
					t.Errorf("%q, want %q in it", got, part)
				}
			}
			if len(parts) == 0 && got != "" {
				t.Errorf("%q, want nothing", got)
			}
		}
		is()
		w.begin("A")
		time.Sleep(slowCommit - time.Millisecond)
		is()
		w.begin("A") // it has got on
		w.begin("B")
		time.Sleep(slowCommit)
		w.end("B")
		is("stream A", "3 seconds", "no reply yet")
		w.setCause("A", fmt.Errorf("READONLY"))
		time.Sleep(time.Second)
		is("stream A", "4 seconds", "READONLY")
		w.end("A")
		is()
	})
}
