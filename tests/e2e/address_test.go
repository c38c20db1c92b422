package e2e_test

import (
	"fmt"
	"net"
	"net/http"
	"regexp"
	"testing"

	"tallyroll/tests/stack"
)

// Two workers of one machine share its streams without a setting: the second one takes
// any free port for its status, logs it, and registers it in the fleet.
func TestASecondWorkerOnOneHostTakesAnotherAddress(t *testing.T) {
	t.Parallel()
	// The usual port may be another program's on this machine: then both take another one.
	if l, err := net.Listen("tcp", "127.0.0.1:8082"); err == nil {
		defer l.Close()
	}
	s := startServers(t)
	s.ingest = stack.Ingest(t, s.nats, s.redis)
	s.query = s.startQuery()
	second := stack.Ingest(t, s.nats, s.redis, stack.NoWait, "INGEST_ADDR=", "INGEST_WORKER=second", "LOG_FORMAT=json")
	second.WaitForLog(`"started"`)
	found := regexp.MustCompile(`"status":"([^"]+)"`).FindStringSubmatch(linesWith(second.Logs(), "status address 127.0.0.1:8082 is in use"))
	if found == nil || found[1] == "127.0.0.1:8082" {
		t.Fatalf("the log names no other address: %s", second.Logs())
	}
	eventuallySays(t, "http://"+found[1]+"/readyz", http.StatusOK, "ready")
	eventuallySays(t, s.query.URL()+"/v1/streams", http.StatusOK, fmt.Sprintf(`"status":%q`, found[1]))
}
