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

// One trace id leads from the request at collect over the refused hit to the log of ingest, and is in the log
// of query for questions over HTTP and NATS. Only ingest shows profiles.
func TestTraceIsFoundInEveryLog(t *testing.T) {
	t.Parallel()
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	const parent = "00-" + id + "-00f067aa0ba902b7-01"
	s := startServers(t)
	s.ingest = stack.Ingest(t, s.nats, s.redis)
	s.query = s.startQuery("LOG_LEVEL=debug")
	collect := stack.Collect(t, s.nats, "LOG_LEVEL=debug")
	logged := func(service *stack.Service, part string) {
		t.Helper()
		stack.Eventually(t, fmt.Sprintf("a line with %s and the trace", part), func() (bool, string) {
			for line := range strings.Lines(service.Logs()) {
				if hasAll(line, []string{part, `"trace_id":"` + id + `"`}) {
					return true, ""
				}
			}
			return false, service.Logs()
		})
	}
	status, text := post(collect, fmt.Sprintf(`{"key":"a","ts":%d}`, time.Now().Add(time.Hour).UnixMilli()), "Traceparent", parent)
	require.Equal(t, http.StatusAccepted, status, text)
	logged(collect, `"path":"/v1/hits"`)
	logged(s.ingest, `"reason":"future"`)
	s.awaitRejects(1)
	stream, err := s.js.Stream(t.Context(), "HITS_REJECTED")
	require.NoError(t, err)
	reject, err := stream.GetMsg(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, parent, reject.Header.Get("traceparent"))

	status, text = request(http.DefaultClient, http.MethodGet, s.query.URL()+"/v1/total?key=a&window=1h", "", "Traceparent", parent)
	require.Equal(t, http.StatusOK, status, text)
	logged(s.query, `"path":"/v1/total"`)
	s.query.WaitForLog("answering on NATS")
	question := nats.Msg{Subject: "tallyroll.total", Header: nats.Header{"traceparent": {parent}}, Data: []byte(`{"keys":["a"],"windows":["1h"]}`)}
	_, err = s.nats.Conn().RequestMsg(&question, stack.Hung)
	require.NoError(t, err)
	logged(s.query, `"subject":"tallyroll.total"`)

	for service, want := range map[*stack.Service]int{s.ingest: http.StatusOK, s.query: http.StatusNotFound, collect: http.StatusNotFound} {
		status, _ := request(http.DefaultClient, http.MethodGet, service.URL()+"/debug/pprof/heap", "")
		require.Equal(t, want, status)
	}
}
