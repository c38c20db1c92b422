package status

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/access"
)

// clocks is a Redis whose clock is ahead of this machine's.
type clocks struct {
	access.Namespace
	ahead time.Duration
}

func (c *clocks) ClockDifference() (time.Duration, bool) { return c.ahead, true }

// The log says once that the clocks differ, and once when that is over.
func TestClockDifferenceIsTold(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	c := &clocks{ahead: 4 * time.Minute}
	h := NewHealth(c, time.Second, zerolog.New(&log), prometheus.NewRegistry())
	told := func() (out []string) {
		for range 3 {
			h.reportClock()
		}
		for line := range strings.Lines(log.String()) {
			var entry struct{ Level, Message string }
			require.NoError(t, json.Unmarshal([]byte(line), &entry))
			out = append(out, entry.Level+" "+strings.SplitN(entry.Message, ":", 2)[0])
		}
		return out
	}
	const warning = "warn the clocks of Redis and of this machine differ"
	if got := fmt.Sprint(told()); got != "["+warning+"]" {
		t.Errorf("the log has %s", got)
	}
	c.ahead = time.Second
	if got := fmt.Sprint(told()); got != "["+warning+" info the clocks of Redis and of this machine agree again]" {
		t.Errorf("the log has %s", got)
	}
}
