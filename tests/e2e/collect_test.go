package e2e_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// posted is the answer to a body that was posted to collect.
func posted(t *testing.T, collect *stack.Service, body []byte, headers ...string) (status int, detail string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, collect.URL()+"/v1/hits", bytes.NewReader(body))
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	var p struct{ Detail string }
	if err := json.Unmarshal(text, &p); err != nil {
		t.Errorf("%s: %v", text, err)
	}
	return resp.StatusCode, p.Detail
}

// A hit that is posted is counted.
func TestCollectCounts(t *testing.T) {
	t.Parallel()
	s := start(t)
	collect := stack.Collect(t, s.nats)
	for _, body := range []string{`{"key":"web","n":2}`, `[{"key":"web"},{"key":"other"}]`, "{\"key\":\"web\"}\n{\"key\":\"web\"}\n"} {
		if status, detail := posted(t, collect, []byte(body)); status != http.StatusAccepted {
			t.Errorf("%s: status %d, %s", body, status, detail)
		}
	}
	stack.EventuallyTotal(t, s.query.URL(), "web", "1h", 5)
}

// malformed are bodies that no worker could count, made from good ones.
func malformed(n int) (out [][]byte) {
	good := []string{`{"key":"a","n":3,"ts":1763683200000}`, `[{"key":"a"},{"key":"b","n":2}]`, "{\"key\":\"a\"}\n{\"key\":\"b\"}\n"}
	spoilt := []func(b []byte) []byte{
		func(b []byte) []byte { return b[:1+rand.IntN(min(len(b)-2, 9))] },                                  // cut
		func(b []byte) []byte { b[0] = "x\xff\x00}],:\"9"[rand.IntN(9)]; return b },                         // another beginning
		func(b []byte) []byte { return bytes.Replace(b, []byte(`"key"`), []byte(`"Key"`), 1) },              // a slip
		func(b []byte) []byte { return bytes.Replace(b, []byte(`"a"`), []byte("\"\xff\xfe\""), 1) },         // not UTF-8
		func(b []byte) []byte { return bytes.Replace(b, []byte(`"a"`), []byte("\"\\ud800\""), 1) },          // half a pair
		func(b []byte) []byte { return bytes.Replace(b, []byte(`"a"`), []byte(`{"a":1}`), 1) },              // another type
		func(b []byte) []byte { return bytes.Replace(b, []byte(`"a"`), []byte(`""`), 1) },                   // no name
		func(b []byte) []byte { return bytes.Replace(b, []byte(`"a"`), []byte(`"a","n":1e3`), 1) },          // not an integer
		func(b []byte) []byte { return append(b, "\n]"...) },                                                // more at the end
		func(b []byte) []byte { return bytes.Repeat([]byte("["), 1+rand.IntN(100_000)) },                    // deep
		func(b []byte) []byte { return append([]byte("\xef\xbb\xbf"), b...) },                               // a byte-order mark
		func(b []byte) []byte { return bytes.Replace(b, []byte(`"a"`), []byte(`"a","ts":"yesterday"`), 1) }, // not a time
	}
	for i := range n {
		out = append(out, spoilt[i%len(spoilt)]([]byte(good[rand.IntN(len(good))])))
	}
	return out
}

// Clients that send nonsense, too much, packed bombs, or one byte at a time get a 4xx or are cut off. They cost little
// memory, and a good client beside them is served all the time.
func TestCollectHostileClients(t *testing.T) {
	t.Parallel()
	s := start(t)
	collect := stack.Collect(t, s.nats, "COLLECT_MAX_WAITING=33554432")
	before := heapOf(t, collect)
	var hostile sync.WaitGroup
	var done atomic.Bool
	t.Cleanup(func() { done.Store(true) })

	good := make(chan int)
	go func() {
		n := 0
		for tick := time.Tick(5 * time.Millisecond); !done.Load(); <-tick {
			if status, detail := posted(t, collect, []byte(`{"key":"good"}`)); status != http.StatusAccepted {
				t.Errorf("the good client: status %d, %s", status, detail)
			}
			n++
		}
		good <- n
	}()
	var most atomic.Int64
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for tick := time.Tick(100 * time.Millisecond); !done.Load(); <-tick {
			most.Store(max(most.Load(), heapOf(t, collect)))
		}
	}()

	hostile.Go(func() {
		for _, body := range malformed(240) {
			status, detail := posted(t, collect, body)
			if status < 400 || status > 499 || len(detail) < 10 {
				t.Errorf("%.100q: status %d, %q", body, status, detail)
			}
		}
	})
	var bomb bytes.Buffer
	w := gzip.NewWriter(&bomb)
	zeros := make([]byte, 1<<20)
	for range 16 { // sixteen times what is allowed, in a hundredth of it
		_, _ = w.Write(zeros)
	}
	require.NoError(t, w.Close())
	large := []byte(strings.Repeat(" ", 2<<20))
	for range 2 {
		hostile.Go(func() {
			for range 5 {
				if status, detail := posted(t, collect, bomb.Bytes(), "Content-Encoding", "gzip"); status != http.StatusRequestEntityTooLarge && status != http.StatusServiceUnavailable {
					t.Errorf("a bomb: status %d, %s", status, detail)
				}
				if status, detail := posted(t, collect, large); status != http.StatusRequestEntityTooLarge {
					t.Errorf("a large body: status %d, %s", status, detail)
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
				_ = conn.SetReadDeadline(time.Now().Add(stack.Hung))
				answer, err := io.ReadAll(conn) // until the server closes
				if first, _, _ := strings.Cut(string(answer), "\r\n"); err == nil && !strings.Contains(first, " 4") && !strings.Contains(first, " 503 ") {
					t.Errorf("a slow body: %q", answer)
				}
			}()
			for drip := time.Tick(100 * time.Millisecond); ; <-drip {
				select {
				case <-ended:
					return
				default:
				}
				_, _ = conn.Write([]byte(" "))
			}
		})
	}
	hostile.Wait()
	done.Store(true)
	served := <-good
	<-watched
	const bound = 200 << 20 // of which 32 MiB are bodies, and as much again until the collector comes
	t.Logf("memory: %d MiB at first, %d MiB at most; the good client was served %d times", before>>20, most.Load()>>20, served)
	if most.Load() > bound {
		t.Errorf("%d MiB", most.Load()>>20)
	}
	if status, body, err := stack.Do(http.MethodGet, collect.URL()+"/metrics", nil); err != nil || status != http.StatusOK || !bytes.Contains(body, []byte("tallyroll_collect_waiting_bytes 0\n")) {
		t.Errorf("status %d, %v: bytes are held when nothing is under way", status, err)
	}
	stack.EventuallyTotal(t, s.query.URL(), "good", "1h", int64(served))
	if answer, err := stack.FetchTotals(s.query.URL(), map[string][]string{"key": {"a", "b"}, "window": {"1h"}}); err != nil || answer.Totals[0].Total+answer.Totals[1].Total != 0 {
		t.Errorf("%+v %v", answer, err)
	}
}

// heapOf is what collect's heap takes. The memory of the process would include the race detector's.
func heapOf(t *testing.T, collect *stack.Service) int64 {
	status, body, err := stack.Do(http.MethodGet, collect.URL()+"/metrics", nil)
	_, rest, found := strings.Cut(string(body), "\ngo_memstats_heap_inuse_bytes ")
	line, _, _ := strings.Cut(rest, "\n")
	n, errParse := strconv.ParseFloat(line, 64)
	if err != nil || status != http.StatusOK || !found || errParse != nil {
		t.Errorf("status %d, %v, %v", status, err, errParse)
	}
	return int64(n)
}

// A setting that cannot work ends collect with a line that names it.
func TestCollectSettings(t *testing.T) {
	t.Parallel()
	for _, setting := range []string{"COLLECT_SUBJECT=hits.>", "COLLECT_SUBJECT=hits.*", "COLLECT_SUBJECT=a b", "COLLECT_SUBJECT=hits.", "COLLECT_ADDR=here", "COLLECT_MAX_WAIT=2s", "COLLECT_TIMEOUT=2m", "COLLECT_MAX_BODY=0", "COLLECT_MAX_HITS=x", "COLLECT_TLS_CERT=/none"} {
		cmd := stack.Command(t.Context(), t, "collect", nil, []string{setting})
		out, err := cmd.CombinedOutput()
		name, _, _ := strings.Cut(setting, "=")
		if err == nil || cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), name) || strings.Count(string(out), "\n") != 1 {
			t.Errorf("%s: exit code %d, %s", setting, cmd.ProcessState.ExitCode(), out)
		}
	}
}
