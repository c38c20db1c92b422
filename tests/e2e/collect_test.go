package e2e_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// Clients that send too much, packed bombs, or one byte at a time get a 4xx or are cut off. They cost little
// memory, and a good client is served all the time.
func TestCollectHostileClients(t *testing.T) {
	t.Parallel()
	s := start(t)
	collect := stack.Collect(t, s.nats, "COLLECT_MAX_WAITING=33554432")
	var hostile, others sync.WaitGroup
	var done atomic.Bool
	var served, most atomic.Int64
	others.Go(func() {
		for tick := time.Tick(5 * time.Millisecond); !done.Load(); <-tick {
			if status, text := post(collect, `{"key":"good"}`); status != http.StatusAccepted {
				t.Errorf("the good client: status %d, %s", status, text)
			}
			served.Add(1)
		}
	})
	others.Go(func() {
		for tick := time.Tick(100 * time.Millisecond); !done.Load(); <-tick {
			most.Store(max(most.Load(), heapOf(t, collect)))
		}
	})

	var bomb bytes.Buffer
	w := gzip.NewWriter(&bomb)
	zeros := make([]byte, 1<<20)
	for range 16 { // sixteen times what is allowed, in a hundredth of it
		_, _ = w.Write(zeros)
	}
	require.NoError(t, w.Close())
	large := strings.Repeat(" ", 2<<20)
	for range 2 {
		hostile.Go(func() {
			for range 5 {
				status, text := post(collect, bomb.String(), "Content-Encoding", "gzip")
				if status != http.StatusRequestEntityTooLarge && status != http.StatusServiceUnavailable {
					t.Errorf("a bomb: status %d, %s", status, text)
				}
				if status, text := post(collect, large); status != http.StatusRequestEntityTooLarge {
					t.Errorf("a large body: status %d, %s", status, text)
				}
			}
		})
	}
	for range 60 { // each announces a megabyte, sends a part, and then drips
		hostile.Go(func() {
			conn, err := net.Dial("tcp", collect.Addr())
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			_, _ = fmt.Fprintf(conn, "POST /v1/hits HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n[")
			_, _ = conn.Write(zeros[:rand.IntN(400_000)])
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				answer, err := io.ReadAll(conn) // until the server closes
				if first, _, _ := strings.Cut(string(answer), "\r\n"); err == nil && !strings.Contains(first, " 4") && !strings.Contains(first, " 503 ") {
					t.Errorf("a slow body: %q", answer)
				}
			}()
			for drip := time.Tick(100 * time.Millisecond); ; {
				select {
				case <-ended:
					return
				case <-drip:
					_, _ = conn.Write([]byte(" "))
				}
			}
		})
	}
	hostile.Wait()
	done.Store(true)
	others.Wait()
	const bound = 200 << 20 // of which 32 MiB are bodies, and as much again until the collector comes
	if most.Load() > bound {
		t.Errorf("%d MiB", most.Load()>>20)
	}
	require.Contains(t, metrics(t, collect), "tallyroll_collect_waiting_bytes 0\n", "bytes are held when nothing is under way")
	s.awaitTotal("good", served.Load())
}

var heapInUse = regexp.MustCompile(`(?m)^go_memstats_heap_inuse_bytes (\S+)$`)

// heapOf is what collect's heap takes. The memory of the process would include the race detector's.
func heapOf(t *testing.T, collect *stack.Service) int64 {
	_, text := request(http.DefaultClient, http.MethodGet, collect.URL()+"/metrics", "")
	found := heapInUse.FindStringSubmatch(text)
	if found == nil {
		t.Errorf("no figure of the heap: %s", text)
		return 0
	}
	n, err := strconv.ParseFloat(found[1], 64)
	if err != nil {
		t.Error(err)
	}
	return int64(n)
}
