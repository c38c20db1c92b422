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

// crowd is a service behind a trusted proxy, with a bound on questions and connections.
type crowd struct {
	t      *testing.T
	s      *rig
	server *httptest.Server
}

func newCrowd(t *testing.T, connections, questions int) *crowd {
	t.Helper()
	s := onFake(t)
	s.hub.maxClients, s.hub.maxQuestions = connections, questions
	if err := s.proxies.UnmarshalText([]byte("127.0.0.1/32")); err != nil {
		t.Fatal(err)
	}
	watched(t, s)
	server := httptest.NewServer(s.handler())
	t.Cleanup(server.Close)
	return &crowd{t, s, server}
}

// ask listens for a client to counters of its own, from one number up to another.
func (c *crowd) ask(client string, from, to int) (*stream, *http.Response) {
	c.t.Helper()
	var query strings.Builder
	for i := from; i < to; i++ {
		fmt.Fprintf(&query, "key=%s-%d&", client, i)
	}
	return tryListen(c.t, c.server.Client(), c.server.URL, query.String()+"window=1m", "X-Forwarded-For", client)
}

// hears checks that a stream is open and has answers.
func (c *crowd) hears(one *stream, resp *http.Response) *stream {
	c.t.Helper()
	if one == nil {
		c.t.Fatalf("status %d: %s", resp.StatusCode, asking.ReadAll(c.t, resp))
	}
	if event, _, data, ok := one.next(); event != "total" || !ok {
		c.t.Fatalf("event %q: %s", event, data)
	}
	return one
}

// held is how many questions a client has.
func (c *crowd) held(client string) int {
	c.s.hub.mu.Lock()
	defer c.s.hub.mu.Unlock()
	return len(c.s.hub.clients[client].asks)
}

// ends reads a stream to its end, which must say which bound has run out.
func (c *crowd) ends(one *stream, bound string) {
	c.t.Helper()
	for one.lines.Scan() {
		one.comments += one.lines.Text()
	}
	if !strings.Contains(one.comments, "its share ("+bound+")") {
		c.t.Errorf("the stream ends with %q, want %s", one.comments, bound)
	}
}

// One client may have all that nobody else wants. Then those who want less than an equal share get it, and it is the
// greedy one who makes room.
func TestLiveQuestionsAreShared(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, 1000, 500)
	var greedy []*stream
	for i := range 31 {
		greedy = append(greedy, c.hears(c.ask("10.6.6.6", 16*i, 16*i+16))) // 496 questions on 31 connections
	}
	for i := range 10 {
		honest := fmt.Sprintf("192.0.2.%d", i+1)
		c.hears(c.ask(honest, 0, 35))                // as a page with seven counters and five windows asks
		one, resp := c.ask("10.6.6.6", 1000+i, 2000) // at once the greedy one tries to come back
		if one != nil {
			t.Fatal("the greedy client gets more than its share")
		}
		p := asking.Refused(t, resp, http.StatusServiceUnavailable)
		if resp.Header.Get("Retry-After") != "5" || !strings.Contains(p.Detail, "QUERY_LIVE_QUESTIONS") || !strings.Contains(p.Detail, fmt.Sprintf("the share of this address is %d", 500/(i+2))) || len(p.Detail) > 500 {
			t.Errorf("%+v", p)
		}
	}
	clients, questions := c.s.hub.sizes()
	if questions > 500 || questions < 350+45 {
		t.Errorf("%d questions are answered", questions)
	}
	if held := c.held("10.6.6.6"); held < 500/11 || held > 150 {
		t.Errorf("the greedy client holds %d questions on %d connections", held, clients-10)
	}
	c.ends(greedy[30], "QUERY_LIVE_QUESTIONS") // the newest first
	if held := c.held("192.0.2.1"); held != 35 {
		t.Errorf("an honest client holds %d questions", held)
	}
	// A thirty-sixth question of an honest client is within its share, which all are asked to make room for.
	c.hears(c.ask("192.0.2.1", 35, 36))
}

// The same of connections: whoever holds them all makes room for somebody who holds few.
func TestLiveConnectionsAreShared(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, 20, 500)
	var greedy []*stream
	for range 20 {
		greedy = append(greedy, c.hears(c.ask("10.6.6.6", 0, 1)))
	}
	if one, resp := c.ask("10.6.6.6", 0, 1); one != nil || !strings.Contains(asking.Refused(t, resp, http.StatusServiceUnavailable).Detail, "QUERY_LIVE_CLIENTS") {
		t.Error("there are more connections than allowed")
	}
	for i := range 3 {
		c.hears(c.ask(fmt.Sprintf("192.0.2.%d", i+1), 0, 1))
		c.ends(greedy[19-i], "QUERY_LIVE_CLIENTS")
	}
	if clients, _ := c.s.hub.sizes(); clients != 20 {
		t.Errorf("%d clients listen", clients)
	}
}

// Without a proxy that is trusted, everybody at an address is one client, whatever they say: an IPv6 network, too.
func TestLiveClientsAreAddresses(t *testing.T) {
	t.Parallel()
	s := onFake(t)
	for _, c := range []struct{ peer, forwarded, want string }{
		{"192.0.2.1:5", "", "192.0.2.1"}, {"192.0.2.1:6", "198.51.100.7", "192.0.2.1"}, {"[2001:db8::1]:5", "", "2001:db8::/64"}, {"[::ffff:192.0.2.1]:5", "", "192.0.2.1"}, {"pipe", "", ""},
	} {
		r := httptest.NewRequest(http.MethodGet, "http://query.test/v1/live", nil)
		r.RemoteAddr = c.peer
		r.Header.Set("X-Forwarded-For", c.forwarded)
		if got := s.clientOf(r); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// Whoever joins, leaves and is dismissed at the same time leaves nothing behind, and the bounds hold throughout.
func TestHubSharesUnderLoad(t *testing.T) {
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
				l, err := h.join(fmt.Sprint(who), asked, make([]time.Duration, len(asked)), false)
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
	if len(h.clients)+len(h.listeners)+len(h.topics) > 0 {
		t.Errorf("%d clients, %d listeners and %d questions are left", len(h.clients), len(h.listeners), len(h.topics))
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
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		return nil, resp
	}
	return newStream(t, resp), resp
}
