package e2e_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// A worker on a terminal shows how far a backlog is worked off.
func TestProgressBarLeavesLogLinesWhole(t *testing.T) {
	t.Parallel()
	s := startServers(t)
	stream := s.createStream("HITS", "hits.>")
	const hits = 16_000
	s.publish(nil, "--count", fmt.Sprint(hits), "--counters", fmt.Sprint(hits), "--batch", "1")
	const far = 6 * time.Second // more than the 5 at which a worker logs that it is far behind
	stack.Eventually(t, "old hits", func() (bool, string) {
		info, err := stream.Info(t.Context())
		if err != nil {
			return false, err.Error()
		}
		age := time.Since(info.State.LastTime)
		return age > far, fmt.Sprintf("%d messages, the last %v old", info.State.Msgs, age)
	})

	// Small loads in small transactions let the backlog last until Redis is halted, and that until the bar is
	// there.
	const columns = 100
	s.ingest = stack.Ingest(t, s.nats, s.redis, stack.Terminal(columns), "INGEST_MAX_LOAD=1048576", "INGEST_MAX_COMMANDS=29", "LOG_FORMAT=json")
	s.redis.Pause()
	const bar = " messages/"
	s.ingest.WaitForLog(bar)
	stack.Eventually(t, "a log line above the bar", func() (bool, string) {
		_, after, _ := strings.Cut(s.ingest.Logs(), bar)
		return strings.Contains(after, "Redis lost"), after
	})
	s.redis.Resume()
	require.Zero(t, s.ingest.Stop())

	// What was drawn last on each line is what remains of it.
	const redrawn, cleared = "\r", "\x1b[2K"
	for line := range strings.SplitSeq(strings.ReplaceAll(s.ingest.Logs(), "\r\n", "\n"), "\n") {
		if last := strings.TrimPrefix(line[strings.LastIndex(line, redrawn)+1:], cleared); last != "" && !json.Valid([]byte(last)) {
			t.Errorf("on the terminal remains %q, which is no line of the log", last)
		}
	}
}

// Without a setting, logs are human-readable on a terminal, and JSON elsewhere.
func TestLogsAreHumanReadableOnATerminal(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		env  []string
		json bool
	}{
		"terminal":          {[]string{stack.Terminal(100)}, false},
		"file":              {nil, true},
		"json, on terminal": {[]string{stack.Terminal(100), "LOG_FORMAT=json"}, true},
	} {
		p := stack.Query(t, nil, append(c.env, stack.NoWait)...)
		p.WaitForLog("started")
		first, _, _ := strings.Cut(p.Logs(), "\n")
		if json.Valid([]byte(first)) != c.json {
			t.Errorf("%s: %q", name, first)
		}
	}
}
