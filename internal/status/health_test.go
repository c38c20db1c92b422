package status

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/answer/scope"
	"tallyroll/internal/window"
	"tallyroll/internal/window/cluster"
	"tallyroll/internal/window/schema"
)

// fakeRedis is a Redis whose clock is ahead of this machine's.
type fakeRedis struct {
	scope.Namespace
	ahead time.Duration
}

func (f *fakeRedis) ClockDifference() (time.Duration, bool) { return f.ahead, true }

// Each change is logged once, and the answers to questions follow it.
func TestHealthLogsEachChangeOnce(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	f := new(fakeRedis)
	registry := prometheus.NewRegistry()
	h := NewHealth(f, time.Second, zerolog.New(&log), registry)
	require.Equal(t, redisUnknown, h.Why())
	lost := errors.New("dial tcp: refused")
	for _, c := range []struct {
		err   error
		ahead time.Duration
		why   string   // a part of it
		lines []string // the level and the beginning of the message
	}{
		{lost, 0, redisLost, []string{"warn Redis lost"}},
		{schema.ErrNoLayout, 0, "start ingest", []string{"info Redis back", "warn nothing to answer from"}},
		{nil, 4 * time.Minute, "", []string{"debug layout known", "warn the clocks of Redis and of this machine differ: answers go by that of Redis"}},
		{nil, -time.Second, "", []string{"info the clocks of Redis and of this machine agree again"}},
		{&cluster.ForeignError{Key: "test:layout", Err: errors.New("WRONGTYPE")}, 0, "test:layout", []string{"error no question can be answered"}},
		{context.DeadlineExceeded, 0, redisLost, []string{"warn Redis lost"}},
		{nil, 0, "", []string{"info Redis back", "debug layout known"}},
	} {
		log.Reset()
		f.ahead = c.ahead
		for range 3 {
			h.report(window.Layout{}, c.err)
			h.reportClock()
		}
		var lines []string
		for line := range strings.Lines(log.String()) {
			var entry struct{ Level, Message string }
			require.NoError(t, json.Unmarshal([]byte(line), &entry))
			lines = append(lines, entry.Level+" "+strings.SplitN(entry.Message, ";", 2)[0])
		}
		require.Equal(t, c.lines, lines, "%v", c.err)
		if why := h.Why(); (why == "") != (c.why == "") || !strings.Contains(why, c.why) {
			t.Errorf("%v: %q, want %q", c.err, why, c.why)
		}
		awaitGauges(t, registry, map[string]float64{"query_clock_difference_seconds redis": c.ahead.Seconds()})
		_, isLost := h.State()
		require.Equal(t, c.why == redisLost, isLost)
	}
}
