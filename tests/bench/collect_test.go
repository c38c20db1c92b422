package bench_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/boot"
	"tallyroll/tests/stack"
)

const (
	collectRequests = 200_000
	collectClients  = 64
	bareEnv         = "BENCH_BARE_ADDR" // this test binary answers 204 there, and measures nothing
)

// collecting is one way to answer POST /v1/hits.
type collecting struct {
	sample
	body              string
	hits              int // of a request
	clients, requests int
}

func (c *collecting) path() string { return "collect/" + c.name }

// measureCollect posts to collect and, by the same client, to a handler of net/http that reads
// nothing and answers 204. The two take turns.
func measureCollect(t *testing.T, r *rig, o options) []*collecting {
	one, many := `{"key":"/shop/item/12"}`, o.size(collectRequests)
	wanted := chosen(o, (*collecting).path,
		&collecting{sample{name: "net/http alone, 204"}, one, 0, collectClients, many},
		&collecting{sample{name: "collect, 1 hit"}, one, 1, collectClients, many},
		&collecting{sample{name: "collect, 100 hits"}, strings.Repeat(one+"\n", 100), 100, collectClients, many / 10},
		&collecting{sample{name: "net/http alone, 204, 1 client"}, one, 0, 1, many / 10},
		&collecting{sample{name: "collect, 1 hit, 1 client"}, one, 1, 1, many / 10},
	)
	if len(wanted) == 0 {
		return nil
	}
	bareAddr, barePID := bareServer(t)
	stream, err := r.js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: "COLLECTED", Subjects: []string{"collected"}})
	require.NoError(t, err)
	service := stack.Collect(t, r.nats, "COLLECT_SUBJECT=collected", "LOG_LEVEL=warn")
	stored := func() uint64 {
		info, err := stream.Info(t.Context())
		require.NoError(t, err)
		return info.State.LastSeq
	}
	inTurns(t, o, wanted, (*collecting).path, func(t *testing.T, c *collecting, run int) {
		require.NoError(t, stream.Purge(t.Context()))
		addr, pid, status := service.Addr(), service.PID(), "202"
		if c.hits == 0 {
			addr, pid, status = bareAddr, barePID, "204"
		}
		press(t, addr, c.body, status, c.clients, min(c.requests, 10*c.clients)) // connects, and warms up
		before, server, broker := stored(), cpuSince(t, pid), cpuSince(t, r.nats.PID())
		began := time.Now()
		took := press(t, addr, c.body, status, c.clients, c.requests)
		n := float64(len(took))
		c.add("rate", n/time.Since(began).Seconds())
		c.add("server", server()*1e6/n)
		c.add("broker", broker()*1e6/n)
		messages := stored() - before
		if messages > 0 {
			c.add("gathered", n/float64(messages))
		}
		c.took = append(c.took, took...)
		fmt.Printf("%s run %d: %.0f requests/s, p50 %v, p99 %v, %d messages\n", c.path(), run+1, c.last("rate"),
			percentile(took, 50), percentile(took, 99), messages)
	})
	return wanted
}

// press posts a body from so many connections, each again when it has its answer. It writes the requests by hand:
// the client shares the machine with what it measures.
func press(t *testing.T, addr, body, status string, clients, requests int) []time.Duration {
	t.Helper()
	text := fmt.Appendf(nil, "POST /v1/hits HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", addr, len(body), body)
	var left atomic.Int64
	left.Store(int64(requests))
	took := make([][]time.Duration, clients)
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			in := bufio.NewReader(conn)
			for left.Add(-1) >= 0 {
				began := time.Now()
				if _, err := conn.Write(text); err != nil {
					t.Error(err)
					return
				}
				if err := answer(in, status); err != nil {
					t.Error(err)
					return
				}
				took[i] = append(took[i], time.Since(began))
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	var all []time.Duration
	for _, some := range took {
		all = append(all, some...)
	}
	return all
}

// answer reads one answer, whose length its header says.
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
			length, err = strconv.Atoi(string(value))
			if err != nil {
				return err
			}
		}
	}
}

// bareServer is this test binary as a process of its own that answers 204, see [serveBare].
func bareServer(t *testing.T) (addr string, pid int) {
	t.Helper()
	addr = fmt.Sprintf("127.0.0.1:%d", stack.FreePort(t))
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), bareEnv+"="+addr)
	stdin, err := cmd.StdinPipe() // it ends when this process does
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		stdin.Close()
		_ = cmd.Wait()
	})
	stack.Eventually(t, "the bare handler", func() (bool, string) {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return false, err.Error()
		}
		return conn.Close() == nil, ""
	})
	return addr, cmd.Process.Pid
}

// serveBare answers every request with 204 until standard input ends.
func serveBare(addr string) {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	err := http.ListenAndServe(addr, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// collectRows are the rows of the table; ratios are to the bare handler with as many clients.
func collectRows(all []*collecting) (rows []string) {
	for _, c := range all {
		of := "–"
		for _, other := range all {
			if other.hits == 0 && other.clients == c.clients {
				of = ratio(c.median("rate"), other.median("rate"))
			}
		}
		perMessage, ofBroker, hits := "–", "–", "–"
		if c.hits > 0 {
			perMessage, ofBroker, hits = short(c.median("gathered")), short(c.median("broker")), boot.Thousands(c.median("rate")*float64(c.hits))
		}
		rows = append(rows, cellsOf(c.name, strconv.Itoa(c.clients), spread(c.rounds["rate"]), of, hits,
			c.p(50), c.p(99), short(c.median("server")), ofBroker, perMessage))
	}
	return rows
}
