package live

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// A stream over HTTP/2 outlasts the time that one write has, though nothing is written meanwhile: the server would
// reset it otherwise.
func TestQuietLiveOverHTTP2(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	asking.Seed(t, redis.Client(), now, asking.Hits("a", now.Add(-time.Minute), 5))
	s := onRedis(t, redis.URL(), now)
	s.hub.writeWithin = time.Second
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { _ = s.hub.serve(ctx); close(ended) }()
	server := httptest.NewUnstartedServer(s.handler())
	server.EnableHTTP2 = true
	server.Config.ReadTimeout, server.Config.WriteTimeout = 2*time.Second, 2*time.Second
	server.StartTLS()
	defer server.Close()
	defer func() { stop(); <-ended }()

	one := listenWith(t, server.Client(), server.URL, "key=a&window=10m")
	if one.major != 2 {
		t.Fatalf("the stream is of HTTP/%d", one.major)
	}
	one.await(5)
	before := readsOf(t, s)
	stack.Eventually(t, "the time of a write to pass", func() (bool, string) {
		if clients, _ := s.hub.sizes(); clients != 1 {
			t.Fatal("the server has reset the stream")
		}
		n := readsOf(t, s) - before
		return n > 12, fmt.Sprint(n) // a quarter of a second each
	})
	asking.Late(t, redis.Client(), now, asking.Hits("a", now.Add(-time.Minute), 2))
	one.await(7)
}

// A client that reads nothing is dropped all the same, over HTTP/1 and HTTP/2, and holds nobody up.
func TestDeafLiveClientsAreDropped(t *testing.T) {
	t.Parallel()
	for _, major := range []int{1, 2} {
		t.Run(fmt.Sprintf("HTTP/%d", major), func(t *testing.T) {
			s := onFake(t)
			s.hub.writeWithin = time.Second
			var total int64
			s.hub.read = func(_ context.Context, questions []window.Question) (window.Answers, error) {
				total++ // each read has news for everybody
				return totalsIn(total, questions)
			}
			watched(t, s)
			server := httptest.NewUnstartedServer(s.handler())
			server.EnableHTTP2 = major == 2
			server.StartTLS()
			t.Cleanup(server.Close) // when its clients are gone
			var query strings.Builder
			for i := range 450 { // more at each read than the buffers on the way have room for in a while
				fmt.Fprintf(&query, "key=%s%d&", strings.Repeat("k", 500), i)
			}
			deaf := listenWith(t, server.Client(), server.URL, query.String()+"window=1m")
			if deaf.major != major {
				t.Fatalf("the stream is of HTTP/%d", deaf.major)
			}
			one := listenWith(t, server.Client(), server.URL, "key=a&window=1m")
			// In less than the two minutes after which the client itself leaves.
			stack.Eventually(t, "the deaf client to be dropped", func() (bool, string) {
				if _, _, _, ok := one.next(); !ok {
					t.Fatal("the other client is dropped")
				}
				clients, questions := s.hub.sizes()
				return clients == 1, fmt.Sprintf("%d clients with %d questions", clients, questions)
			})
		})
	}
}

// listenWith is listen with a client of the test's.
func listenWith(t *testing.T, client *http.Client, base, query string, headers ...string) *stream {
	t.Helper()
	one, resp := tryListen(t, client, base, query, headers...)
	if one == nil {
		t.Fatalf("status %d, %v: %s", resp.StatusCode, resp.Header, asking.ReadAll(t, resp))
	}
	return one
}

// Whoever joins and leaves at the same time leaves nothing behind, and the bounds hold throughout.
func TestHubBoundsUnderLoad(t *testing.T) {
	t.Parallel()
	h, _ := scripted(totalsIn)
	h.maxClients, h.maxQuestions = 30, 40
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { _ = h.serve(ctx); close(done) }()
	var running sync.WaitGroup
	for who := range 8 {
		running.Go(func() {
			for n := range 300 {
				asked := make([]question, 1+(who*7+n)%12)
				for i := range asked {
					asked[i] = question{fmt.Sprint(who%3, n%4, i), "1m"}
				}
				l, err := h.join(asked, make([]time.Duration, len(asked)), false)
				if err != nil {
					continue
				}
				if clients, questions := h.sizes(); clients > 30 || questions > 40 {
					t.Errorf("%d clients with %d questions", clients, questions)
				}
				l.events()
				if n%3 > 0 {
					h.leave(l)
				} else {
					defer h.leave(l)
				}
			}
		})
	}
	running.Wait()
	h.mu.Lock()
	if len(h.listeners)+len(h.topics) > 0 {
		t.Errorf("%d listeners and %d questions are left", len(h.listeners), len(h.topics))
	}
	h.mu.Unlock()
	cancel()
	<-done
}

// tryListen connects; the stream is nil if that is refused.
func tryListen(t *testing.T, client *http.Client, base, query string, headers ...string) (*stream, *http.Response) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/v1/live?"+query, nil)
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	require.NoError(t, err)
	t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		return nil, resp
	}
	return newStream(t, resp), resp
}
