package collect

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// readiness is the answer of /readyz.
func (r *rig) readiness() (status int, body string) {
	r.t.Helper()
	status, text, err := stack.Do(http.MethodGet, r.url+"/readyz", nil)
	require.NoError(r.t, err)
	return status, string(text)
}

// awaitReadiness waits until /readyz has a status, and says something.
func (r *rig) awaitReadiness(want int, says string) {
	r.t.Helper()
	stack.Eventually(r.t, fmt.Sprint("/readyz to be ", want), func() (bool, string) {
		status, body := r.readiness()
		return status == want && strings.Contains(body, says), body
	})
}

func TestWithoutAStreamAnswersNameTheSettingToChange(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	require.NoError(t, r.js.DeleteStream(t.Context(), "HITS"))
	require.Regexp(t, "hits.collect.*COLLECT_SUBJECT", r.mustRefuse(http.StatusServiceUnavailable, `{"key":"a"}`).Detail)
	r.awaitReadiness(http.StatusServiceUnavailable, "COLLECT_SUBJECT")
	var err error
	r.stream, err = r.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "HITS", Subjects: []string{"hits.>"}})
	require.NoError(t, err)
	r.mustStore(`{"key":"b"}`)
	require.Equal(t, map[string]int64{"b": 1}, r.countHits())
	r.awaitReadiness(http.StatusOK, "")
}

func TestFullStreamStoresNothingAndAnswersSaySo(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 1, jetstream.DiscardNew })
	r.mustStore(`{"key":"a"}`)
	for _, headers := range [][]string{nil, {keyHeader, "k"}} {
		require.Contains(t, r.mustRefuse(http.StatusServiceUnavailable, `{"key":"b"}`, headers...).Detail, "maximum messages exceeded")
	}
	require.Equal(t, map[string]int64{"a": 1}, r.countHits())
	status, body := r.readiness()
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, body, "maximum messages exceeded")
	require.NoError(t, r.stream.Purge(t.Context()))
	r.mustStore(`{"key":"c"}`)
	status, body = r.readiness()
	require.Equal(t, http.StatusOK, status, body)
}

func TestWhileNATSIsAwayNothingIsTaken(t *testing.T) {
	t.Parallel()
	server := stack.NATS(t)
	r := newRigOn(t, server, nil)
	server.Stop()
	r.awaitReadiness(http.StatusServiceUnavailable, "")
	require.Contains(t, r.mustRefuse(http.StatusServiceUnavailable, `{"key":"a"}`).Detail, "nothing of this request is stored")
	server.Start()
	r.awaitReadiness(http.StatusOK, "")
	r.mustStore(`{"key":"b"}`)
	require.Equal(t, map[string]int64{"b": 1}, r.countHits())
}

// What was sent to a server that does not answer is unknown. It is never said to be not stored, and with its
// key it can be sent again.
func TestUnansweredRequestIsUnknownAndCountsOnceWhenRepeated(t *testing.T) {
	t.Parallel()
	server := stack.NATSProcess(t)
	r := newRigOn(t, server, nil, "COLLECT_TIMEOUT=1s")
	r.mustStore(`{"key":"before"}`)
	server.Pause()
	var wg sync.WaitGroup
	want := map[string]int64{"before": 1}
	for i := range 8 {
		want[fmt.Sprintf("c%d", i)] = 1
		wg.Go(func() {
			p := r.mustRefuse(http.StatusGatewayTimeout, fmt.Sprintf(`{"key":"c%d"}`, i), keyHeader, fmt.Sprint("k", i))
			if !strings.Contains(p.Detail, keyHeader) || !strings.Contains(p.Detail, "COLLECT_TIMEOUT") {
				t.Error(p.Detail)
			}
		})
	}
	wg.Wait()
	server.Resume()
	for i := range 8 {
		stack.Eventually(t, "the retry", func() (bool, string) {
			resp, answer := r.post(fmt.Sprintf(`{"key":"c%d"}`, i), keyHeader, fmt.Sprint("k", i))
			return resp.StatusCode == http.StatusAccepted, string(answer)
		})
	}
	require.Equal(t, want, r.countHits())
}

func TestWithoutRoomLargeRequestsAreRefusedAtOnceAndSmallOnesTaken(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, "COLLECT_MAX_WAITING=200000", "COLLECT_MAX_REQUESTS=3", "COLLECT_MAX_BODY=150000")
	large := strings.Repeat("{\"key\":\"a\"}\n", 9000)
	arriving, rest := io.Pipe()
	defer rest.Close()
	first := make(chan int, 1)
	go func() {
		status := 0
		if resp, err := http.Post(r.url+hitsPath, "", arriving); err == nil {
			status = resp.StatusCode
			resp.Body.Close()
		}
		first <- status
	}()
	_, err := rest.Write([]byte(large))
	require.NoError(t, err)
	stack.Eventually(t, "the large body to be in memory", func() (bool, string) {
		n := r.budget.Bytes()
		return n > 100_000, fmt.Sprint(n)
	})
	require.Contains(t, r.mustRefuse(http.StatusServiceUnavailable, large).Detail, "COLLECT_MAX_WAITING")
	r.mustStore(`{"key":"small"}`)
	stack.Eventually(t, "the other requests to leave", func() (bool, string) {
		n := r.budget.Requests()
		return n == 1, fmt.Sprint(n)
	})
	for r.budget.Enter() {
	}
	require.Contains(t, r.mustRefuse(http.StatusServiceUnavailable, `{"key":"b"}`).Detail, "COLLECT_MAX_REQUESTS")
	for r.budget.Requests() > 1 { // the first
		r.budget.Leave()
	}
	require.NoError(t, rest.Close())
	require.Equal(t, http.StatusAccepted, <-first)
	require.Equal(t, map[string]int64{"a": 9000, "small": 1}, r.countHits())
}

func TestServiceThatStopsAnswersWhatWaits(t *testing.T) {
	t.Parallel()
	server := stack.NATSProcess(t)
	_, err := server.JetStream().CreateStream(t.Context(), jetstream.StreamConfig{Name: "HITS", Subjects: []string{"hits.>"}})
	require.NoError(t, err)
	collect := stack.Collect(t, server)
	server.Pause()
	defer server.Resume()
	answer := make(chan string, 1)
	go func() {
		status, body, err := stack.Do(http.MethodPost, collect.URL()+hitsPath, map[string]string{"key": "a"})
		answer <- fmt.Sprintf("%d %s %v", status, body, err)
	}()
	stack.Eventually(t, "the request to be under way", func() (bool, string) {
		_, body, err := stack.Do(http.MethodGet, collect.URL()+"/metrics", nil)
		return bytes.Contains(body, []byte("tallyroll_collect_requests 1")), fmt.Sprint(err)
	})
	require.Zero(t, collect.Stop(), collect.Logs())
	require.Regexp(t, `(?s)^504 \{.*"detail":.* <nil>$`, <-answer)
}

// relay passes bytes to a server and back. While it is deaf, it drops what the server sends.
type relay struct {
	net.Listener
	deaf  atomic.Bool
	mu    sync.Mutex
	conns []net.Conn
}

// deafConn is a client's connection to a relay.
type deafConn struct {
	net.Conn
	*relay
}

func (c deafConn) Write(b []byte) (int, error) {
	if c.deaf.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func newRelay(t *testing.T, server string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &relay{Listener: l}
	var wg sync.WaitGroup
	carry := func(to io.WriteCloser, from io.Reader) {
		_, _ = io.Copy(to, from)
		to.Close()
	}
	wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			there, err := net.Dial("tcp", server)
			if err != nil {
				client.Close()
				continue
			}
			r.mu.Lock()
			r.conns = append(r.conns, client, there)
			r.mu.Unlock()
			wg.Go(func() { carry(there, client) })
			wg.Go(func() { carry(deafConn{client, r}, there) })
		}
	})
	t.Cleanup(func() { l.Close(); r.cut(); wg.Wait() })
	return r
}

// cut breaks all connections.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		c.Close()
	}
	r.conns = nil
}

// A message is stored, its acknowledgement is lost, and the connection breaks: the message is sent again
// under its id, no client gets the answer that it is not stored, and it counts once.
func TestMessageWhoseAcknowledgementIsLostCountsOnce(t *testing.T) {
	t.Parallel()
	server := stack.NATS(t)
	address, err := url.Parse(server.URL())
	require.NoError(t, err)
	between := newRelay(t, address.Host)
	r := newRigOn(t, server, nil, "NATS_URL=nats://"+between.Addr().String())
	var sent sync.WaitGroup
	for round := range 3 {
		between.deaf.Store(true)
		for i := range 8 {
			var headers []string
			if i%2 == 0 {
				headers = []string{keyHeader, fmt.Sprint(round, "-", i)}
			}
			sent.Go(func() { r.mustStore(fmt.Sprintf(`{"key":"c%d"}`, i), headers...) })
		}
		stack.Eventually(t, "the stream to store all hits, whose answers are lost", func() (bool, string) {
			hits := int64(0)
			for _, n := range r.countHits() {
				hits += n
			}
			return hits == int64(8*(round+1)), fmt.Sprint(hits, " hits")
		})
		between.deaf.Store(false)
		between.cut()
		sent.Wait()
	}
	for key, n := range r.countHits() {
		require.EqualValues(t, 3, n, key)
	}
}

// A stream that messages of hits can never suit is named as such: to send them again does not help.
func TestAStreamThatHitsDoNotSuitIsNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *jetstream.StreamConfig) { c.AllowMsgCounter, c.AllowDirect = true, true })
	resp, answer := r.post(`{"key":"a"}`)
	p := checkProblem(t, resp, answer, http.StatusServiceUnavailable)
	require.Regexp(t, `increment is missing.*does not help.*COLLECT_SUBJECT`, p.Detail)
	require.Equal(t, "60", resp.Header.Get("Retry-After"))
	r.awaitReadiness(http.StatusServiceUnavailable, "increment is missing")
}
