package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// audit runs the program audit, and returns its exit code and output.
func (s *system) audit(env ...string) (code int, out string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), stack.Hung)
	defer cancel()
	cmd := stack.Command(ctx, s.t, "audit", nil, append([]string{"NATS_URL=" + s.nats.URL(), "REDIS_URL=" + s.redis.URL()}, env...))
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		s.t.Fatalf("%v\n%s", err, text.String())
	}
	return cmd.ProcessState.ExitCode(), text.String()
}

func (s *system) wantAudit(code int, parts ...string) {
	s.t.Helper()
	got, out := s.audit()
	if got != code {
		s.t.Errorf("audit ends with %d, want %d:\n%s", got, code, out)
	}
	for _, part := range parts {
		if !strings.Contains(out, part) {
			s.t.Errorf("audit does not say %q:\n%s", part, out)
		}
	}
}

// After kills, and beside a worker that counts, audit finds no difference; then the one that somebody makes.
func TestAuditProvesTheCounts(t *testing.T) {
	t.Parallel()
	s := start(t, "INGEST_MAX_COMMANDS=200")
	if code, out := s.audit("TALLYROLL_NAMESPACE=other"); code != 2 || !strings.HasPrefix(out, "audit: no worker has counted in the namespace other") {
		t.Errorf("a namespace that is not there: %d, %q", code, out)
	}
	for range 4 {
		s.publish(nil, "--count", "20000", "--counters", "300", "--batch", "20")
		s.ingest.Kill()
		s.ingest.Start()
		s.wantAudit(0, " counters, 0 differences\n")
	}
	last := s.send("hits.last", "").Sequence
	stack.Eventually(t, "the worker to be at the end", func() (bool, string) {
		for shard := range 16 {
			if at, _ := s.redis.Client().HGet(t.Context(), fmt.Sprintf("tallyroll:{%d}:cursor:HITS", shard), "seq").Uint64(); at != last {
				return false, fmt.Sprintf("shard %d is at %d of %d", shard, at, last)
			}
		}
		return true, ""
	})
	s.wantAudit(0, "audit: 80001 hits, 301 counters, 0 differences\n")

	key := stack.Scan(t, s.redis.Client(), "tallyroll:{*}:h:1h:*:last")[0]
	field := s.redis.Client().HKeys(t.Context(), key).Val()[0]
	require.NoError(t, s.redis.Client().HIncrBy(t.Context(), key, field, 2).Err())
	s.wantAudit(1, `difference: counter "last", tier 1h/32d, cell `, ": Redis has 3 hits, the streams 1\n", "audit: 80001 hits, 301 counters, 1 differences\n")
}
