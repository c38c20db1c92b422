package e2e_test

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// Two workers of one machine share its streams without a setting: the second one takes
// any free port for its status, says so, and tells the fleet.
func TestASecondWorkerOnOneHost(t *testing.T) {
	t.Parallel()
	// The usual port may be somebody else's on this machine: then both take another one.
	if l, err := net.Listen("tcp", "127.0.0.1:8082"); err == nil {
		defer l.Close()
	}
	s := start(t)
	second := stack.Ingest(t, s.nats, s.redis, stack.NoWait, "INGEST_ADDR=", "INGEST_WORKER=second", "LOG_FORMAT=json")
	second.WaitForLog(`"started"`)
	status := ""
	for line := range strings.Lines(second.Logs()) {
		var said struct{ Message, Status, Taken string }
		if json.Unmarshal([]byte(line), &said) == nil && said.Taken == "127.0.0.1:8082" {
			status = said.Status
		}
	}
	if status == "" || status == "127.0.0.1:8082" {
		t.Fatalf("the log names no other address: %s", second.Logs())
	}
	stack.Eventually(t, "the second worker to be ready at "+status, func() (bool, string) {
		code, body, err := stack.Do("GET", "http://"+status+"/readyz", nil)
		return err == nil && code == 200, string(body)
	})
	kv, err := s.js.KeyValue(t.Context(), "tallyroll_tallyroll")
	require.NoError(t, err)
	stack.Eventually(t, "the fleet to know its status address", func() (bool, string) {
		return fleetKnows(t, kv, status)
	})
}

// fleetKnows reports whether a member has that status address, or what the fleet has instead.
func fleetKnows(t *testing.T, kv jetstream.KeyValue, status string) (bool, string) {
	t.Helper()
	keys, err := kv.Keys(t.Context())
	if err != nil {
		return false, err.Error()
	}
	seen := "the fleet has:"
	for _, key := range keys {
		entry, err := kv.Get(t.Context(), key)
		if err != nil { // it has left since
			seen += fmt.Sprintf("\n%s: %s", key, err)
			continue
		}
		if strings.Contains(string(entry.Value()), status) {
			return true, ""
		}
		seen += fmt.Sprintf("\n%s: %s", key, entry.Value())
	}
	return false, seen
}

// An address that was chosen is not exchanged for another one.
func TestAnAddressThatIsTaken(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	for program, key := range map[string]string{"ingest": "INGEST_ADDR", "query": "QUERY_ADDR"} {
		code, out := ends(t, program, nil, key+"="+l.Addr().String())
		if code != 2 || !strings.HasPrefix(out, program+": "+key) || !strings.Contains(out, "set "+key) || strings.Count(out, "\n") != 1 {
			t.Errorf("%s at a taken address ends with %d and %q", program, code, out)
		}
	}
}
