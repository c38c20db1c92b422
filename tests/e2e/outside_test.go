package e2e_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// One trace id leads from the request at collect over the refused hit to the log of ingest, and is in the log of query for
// questions over HTTP and NATS.
func TestTraceIsFoundAgain(t *testing.T) {
	t.Parallel()
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	const parent = "00-" + id + "-00f067aa0ba902b7-01"
	server, redis := stack.NATS(t), stack.Redis(t)
	s := &system{t: t, nats: server, redis: redis, js: server.JetStream()}
	s.ingest = stack.Ingest(t, server, redis)
	s.query = stack.Query(t, redis, "NATS_URL="+server.URL(), "LOG_LEVEL=debug")
	collect := stack.Collect(t, server, "LOG_LEVEL=debug")
	ask := func(address, body string) (int, string) {
		t.Helper()
		status, text, err := send(t.Context(), &http.Client{Transport: traced(parent)}, address, body)
		require.NoError(t, err)
		return status, text
	}
	named := func(of *stack.Service, parts ...string) {
		t.Helper()
		stack.Eventually(t, fmt.Sprintf("a line with %q and the trace", parts), func() (bool, string) {
			for line := range strings.Lines(of.Logs()) {
				if hasAll(line, append(parts, `"trace_id":"`+id+`"`)) {
					return true, ""
				}
			}
			return false, of.Logs()
		})
	}

	if status, text := ask(collect.URL()+"/v1/hits", fmt.Sprintf(`{"key":"a","ts":%d}`, time.Now().Add(time.Hour).UnixMilli())); status != http.StatusAccepted {
		t.Fatal(status, text)
	}
	named(collect, `"path":"/v1/hits"`)
	if got := s.rejects(1)[0].Header.Get("traceparent"); got != parent {
		t.Errorf("the reject has the traceparent %q", got)
	}
	named(s.ingest, `"reason":"future"`)

	if status, text := ask(s.query.URL()+"/v1/total?key=a&window=1h", ""); status != http.StatusOK {
		t.Fatal(status, text)
	}
	named(s.query, `"path":"/v1/total"`)
	stack.Eventually(t, "an answer over NATS", func() (bool, string) {
		_, err := server.Conn().RequestMsg(&nats.Msg{Subject: "tallyroll.total", Header: nats.Header{"traceparent": {parent}}, Data: []byte(`{"keys":["a"],"windows":["1h"]}`)}, stack.Hung)
		return err == nil, fmt.Sprint(err)
	})
	named(s.query, `"subject":"tallyroll.total"`)

	if status, _, err := stack.Do(http.MethodGet, s.ingest.URL()+"/debug/pprof/heap", nil); err != nil || status != http.StatusOK {
		t.Errorf("the heap of ingest: %d %v", status, err)
	}
	for _, address := range []string{collect.URL(), s.query.URL()} {
		if status, _, err := stack.Do(http.MethodGet, address+"/debug/pprof/heap", nil); err != nil || status != http.StatusNotFound {
			t.Errorf("%s answers with its heap: %d %v", address, status, err)
		}
	}
}

// traced sends each request with this traceparent.
type traced string

func (parent traced) RoundTrip(r *http.Request) (*http.Response, error) {
	r.Header.Set("traceparent", string(parent))
	return http.DefaultTransport.RoundTrip(r)
}

func hasAll(text string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}
