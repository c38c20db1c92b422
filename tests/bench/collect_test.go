package bench_test

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

const (
	collectRequests = 200_000
	collectClients  = 64
	bareEnv         = "BENCH_BARE_ADDR" // this test binary answers 204 there, and measures nothing
)

// collectRun is one way to answer POST /v1/hits.
type collectRun struct {
	sample
	Base     *sample
	body     string
	hits     int // of a request
	requests int
}

// measureCollect posts to collect and, by the same client, to a handler of net/http that reads
// nothing and answers 204. They take turns.
func measureCollect(t *testing.T, r *rig, o options) []*collectRun {
	one, many := `{"key":"/shop/item/12"}`, o.size(collectRequests)
	var all []*collectRun
	add := func(name, body string, hits, requests int) {
		c := &collectRun{sample: sample{part: "collect", name: name}, body: body, hits: hits, requests: requests}
		all = append(all, c)
		c.Base = &all[0].sample
	}
	add("net/http alone, 204", one, 0, many)
	add("collect, 1 hit", one, 1, many)
	add("collect, 100 hits", strings.Repeat(one+"\n", 100), 100, many/10)
	wanted := chosen(o, all...)
	if len(wanted) == 0 {
		return nil
	}
	bareAddr, barePID := bareServer(t)
	config := jetstream.StreamConfig{Name: "COLLECTED", Subjects: []string{"collected"}}
	stream, err := r.js.CreateOrUpdateStream(t.Context(), config)
	require.NoError(t, err)
	service := stack.Collect(t, r.nats, "COLLECT_SUBJECT=collected", "LOG_LEVEL=warn")
	stored := func() uint64 {
		info, err := stream.Info(t.Context())
		require.NoError(t, err)
		return info.State.LastSeq
	}
	inTurns(t, o, wanted, func(t *testing.T, c *collectRun, _ int) {
		require.NoError(t, stream.Purge(t.Context()))
		addr, pid, status := service.Addr(), service.PID(), "202"
		if c.hits == 0 {
			addr, pid, status = bareAddr, barePID, "204"
		}
		postHits(t, addr, c.body, status, min(c.requests, 10*collectClients)) // warms up
		before, server, broker := stored(), cpuSince(t, pid), cpuSince(t, r.nats.PID())
		began := time.Now()
		took := postHits(t, addr, c.body, status, c.requests)
		n := float64(len(took))
		c.add("rate", n/time.Since(began).Seconds())
		c.add("server", server()*1e6/n)
		c.took = append(c.took, took...)
		if c.hits > 0 {
			c.add("hits", c.last("rate")*float64(c.hits))
			c.add("broker", broker()*1e6/n)
			c.add("gathered", n/float64(stored()-before))
		}
	})
	return wanted
}

// postHits posts a body from all clients, each again when it has its answer. It writes the requests by hand:
// the client shares the machine with what it measures.
func postHits(t *testing.T, addr, body, status string, requests int) []time.Duration {
	t.Helper()
	head := "POST /v1/hits HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
	text := fmt.Appendf(nil, head, addr, len(body), body)
	var conns [collectClients]net.Conn
	var answers [collectClients]*bufio.Reader
	for i := range conns {
		conn, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		defer conn.Close()
		conns[i], answers[i] = conn, bufio.NewReader(conn)
	}
	var left atomic.Int64
	left.Store(int64(requests))
	took, _ := press(t, collectClients, func(int) bool { return left.Add(-1) >= 0 }, func(client, _ int) error {
		if _, err := conns[client].Write(text); err != nil {
			return err
		}
		return answer(answers[client], status)
	})
	return took
}

// answer reads one answer, whose length its header gives.
func answer(in *bufio.Reader, status string) error {
	length := 0
	for first := true; ; first = false {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return err
		}
		line = bytes.TrimRight(line, "\r\n")
		if first && (len(line) < 12 || string(line[9:12]) != status) {
			return fmt.Errorf("answered %q, want %s", line, status)
		}
		if len(line) == 0 {
			_, err := in.Discard(length)
			return err
		}
		if value, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			if length, err = strconv.Atoi(string(value)); err != nil {
				return err
			}
		}
	}
}

// bareServer is this test binary as a process of its own that answers 204, see [serveBare].
func bareServer(t *testing.T) (addr string, pid int) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	p := stack.Server(t, self, func(port int) (args, env []string) {
		return nil, []string{bareEnv + "=127.0.0.1:" + strconv.Itoa(port)}
	})
	return p.Addr(), p.PID()
}

// serveBare answers every request with 204.
func serveBare(addr string) {
	noContent := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }
	err := http.ListenAndServe(addr, http.HandlerFunc(noContent))
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// Every hit that is posted is stored.
func checkCollect(t *testing.T, r *rig) {
	for _, c := range measureCollect(t, r, options{runs: 1, scale: 0.001, only: everything}) {
		if len(c.took) != c.requests || c.hits > 0 && c.last("gathered") < 1 {
			t.Errorf("%s: %d answers, %v", c.name, len(c.took), c.rounds)
		}
	}
}
