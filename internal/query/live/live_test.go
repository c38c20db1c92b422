package live

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/query/answer"
	"tallyroll/internal/web/api"
	"tallyroll/internal/window"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/apitest"
	"tallyroll/tests/stack"
)

// stream is a client of /v1/live.
type stream struct {
	t     *testing.T
	lines *bufio.Scanner
	major int // of HTTP
}

// listen connects, and fails the test if that is refused. On a busy machine, a server with short timeouts may
// close a connection before it has read the request: listen tries again.
func listen(t *testing.T, server *httptest.Server, query string, headers ...string) *stream {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+Path+"?"+query, nil)
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	var resp *http.Response
	stack.Eventually(t, "an answer", func() (bool, string) {
		var err error
		resp, err = server.Client().Do(req)
		return err == nil, fmt.Sprint(err)
	})
	t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("status %d, %v: %s", resp.StatusCode, resp.Header, apitest.ReadBody(t, resp))
	}
	return &stream{t: t, lines: bufio.NewScanner(resp.Body), major: resp.ProtoMajor}
}

// next is the next event; ok is false at the end of the stream.
func (s *stream) next() (event, id, data string, ok bool) {
	for s.lines.Scan() {
		name, value, _ := strings.Cut(s.lines.Text(), ": ")
		switch name {
		case "event":
			event = value
		case "id":
			id = value
		case "data":
			return event, id, value, true
		}
	}
	return "", "", "", false
}

// total is the next event, which may be another one than a total.
func (s *stream) total() (event, id string, got answer.Total, data string) {
	s.t.Helper()
	event, id, data, ok := s.next()
	require.True(s.t, ok, "the stream has ended")
	if event == "total" {
		require.NoErrorf(s.t, json.Unmarshal([]byte(data), &got), "%s", data)
	}
	return event, id, got, data
}

// await reads events until the total of a in 10m is want, and returns its id.
func (s *stream) await(want int64) string {
	s.t.Helper()
	for {
		event, id, got, data := s.total()
		if event == "total" && got.Total == want {
			if got.Key != "a" || got.Window != "10m" || !got.To.After(got.From) {
				s.t.Errorf("event %s", data)
			}
			return id
		}
	}
}

// readsOf is how often the hub has asked Redis.
func readsOf(t *testing.T, s *rig) int {
	t.Helper()
	text := string(apitest.ReadBody(t, apitest.Send(s.handler(), http.MethodGet, "/metrics", "")))
	_, value, _ := strings.Cut(text, "\ntallyroll_query_live_reads_total ")
	value, _, _ = strings.Cut(value, "\n")
	n, err := strconv.Atoi(value)
	require.NoError(t, err, text)
	return n
}

// awaitReads waits until the hub has read n times more, which takes a quarter of a second each.
func awaitReads(t *testing.T, s *rig, n int) {
	t.Helper()
	before := readsOf(t, s)
	stack.Eventually(t, "reads", func() (bool, string) {
		more := readsOf(t, s) - before
		return more > n, fmt.Sprint(more)
	})
}

func TestLiveSendsEveryChangeToAll(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), apitest.Now()
	apitest.Seed(t, redis.Client(), now, apitest.NewSample("a", now.Add(-time.Minute), 5))
	s := onRedis(t, redis.URL(), now)
	server, stop := s.start(t, func(server *httptest.Server) {
		// A stream outlasts the time that other requests have.
		server.Config.ReadTimeout, server.Config.WriteTimeout = 200*time.Millisecond, 200*time.Millisecond
	})

	all := make([]*stream, 20)
	for i := range all {
		all[i] = listen(t, server, "key=a&window=10m")
	}
	for _, one := range all {
		one.await(5)
	}
	if n := readsOf(t, s); n > 30 {
		t.Errorf("%d reads for 20 clients of one counter", n)
	}
	seq := uint64(2)
	add := func(n int64) {
		t.Helper()
		hits := []apitest.Sample{apitest.NewSample("a", now.Add(-time.Minute), n)}
		apitest.Commit(t, schema.NewStore(redis.Client(), apitest.Namespace), apitest.Layout(t), now, seq, hits)
		seq++
	}
	id := ""
	for i, want := range []int64{6, 8, 11} {
		awaitReads(t, s, 2) // for the server's timeouts to pass
		add(int64(i + 1))
		for _, one := range all {
			id = one.await(want)
		}
	}
	t.Run("connecting again", func(t *testing.T) {
		same := listen(t, server, "key=a&window=10m", "Last-Event-ID", id)
		other := listen(t, server, "key=a&window=10m", "Last-Event-ID", "older")
		other.await(11)
		add(1)
		if _, newID, data, _ := same.next(); newID == id || !strings.Contains(data, `"total":12`) {
			t.Errorf("the first event after %s is %s: %s; want the next change", id, newID, data)
		}
	})
	t.Run("Redis goes and comes", func(t *testing.T) {
		one := listen(t, server, "key=a&window=10m")
		one.await(12)
		redis.Stop()
		event, _, data, _ := one.next()
		require.Equal(t, "problem", event)
		require.Contains(t, data, `"status":503`)
		redis.Start()
		one.await(12)
	})
	t.Run("all leave when the service stops", func(t *testing.T) {
		one := listen(t, server, "key=a&window=10m")
		stop()
		for ok := true; ok; {
			_, _, _, ok = one.next()
		}
		apitest.RequireProblem(t, apitest.Send(s.handler(), http.MethodGet, "/v1/live?key=a&window=10m", ""), http.StatusServiceUnavailable)
	})
}

// One connection hears about every counter in every window, each question once, and about as_of as long as
// nothing changes.
func TestLiveAnswersManyQuestionsOnOneConnection(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), apitest.Now()
	apitest.Seed(t, redis.Client(), now, apitest.NewSample("a", now.Add(-time.Minute), 5), apitest.NewSample("b", now.Add(-30*time.Minute), 7))
	s := onRedis(t, redis.URL(), now)
	server, _ := s.start(t, nil)
	one := listen(t, server, "key=a&key=b&key=a&window=10m&window=1h&as_of=true", "Last-Event-ID", "5-5-5-false")
	for _, want := range []answer.Total{
		{Key: "a", Window: "10m", Total: 5}, {Key: "a", Window: "1h", Total: 5}, {Key: "b", Window: "10m"}, {Key: "b", Window: "1h", Total: 7},
	} {
		_, _, got, _ := one.total()
		require.Equal(t, want, answer.Total{Key: got.Key, Window: got.Window, Total: got.Total})
	}
	for range 2 {
		event, _, _, data := one.total()
		require.Equal(t, "as_of", event)
		require.Contains(t, data, string(api.Encode(asOfData{now.Truncate(time.Millisecond), now}))[1:20])
	}
	requireSizes(t, s.hub, 1, 4)
	apitest.SeedLate(t, redis.Client(), now, apitest.NewSample("b", now.Add(-time.Minute), 2))
	heard := make(map[string]int64)
	for len(heard) < 2 {
		if event, _, got, _ := one.total(); event == "total" {
			heard[got.Key+" "+got.Window] = got.Total
		}
	}
	require.Equal(t, map[string]int64{"b 10m": 2, "b 1h": 9}, heard)
}

// A stream over HTTP/2 outlasts the time that one write has, though nothing is written meanwhile: the server
// would reset it otherwise.
func TestQuietLiveOutlastsAWriteOverHTTP2(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), apitest.Now()
	apitest.Seed(t, redis.Client(), now, apitest.NewSample("a", now.Add(-time.Minute), 5))
	s := onRedis(t, redis.URL(), now)
	s.hub.writeWithin = time.Second
	server, _ := s.start(t, func(server *httptest.Server) {
		server.EnableHTTP2 = true
		server.Config.ReadTimeout, server.Config.WriteTimeout = 2*time.Second, 2*time.Second
	})
	one := listen(t, server, "key=a&window=10m")
	require.Equal(t, 2, one.major)
	one.await(5)
	awaitReads(t, s, 12) // for the time of a write to pass
	requireSizes(t, s.hub, 1, 1)
	apitest.SeedLate(t, redis.Client(), now, apitest.NewSample("a", now.Add(-time.Minute), 2))
	one.await(7)
}

// A client that reads nothing is dropped all the same, over HTTP/1 and HTTP/2, and holds up no other.
func TestDeafLiveClientsAreDropped(t *testing.T) {
	t.Parallel()
	for _, major := range []int{1, 2} {
		t.Run(fmt.Sprintf("HTTP/%d", major), func(t *testing.T) {
			t.Parallel()
			var total int64
			s := newRig(func(_ context.Context, questions []window.Question) (window.Answers, error) {
				total++ // each read has news for every client
				return totalsIn(total, questions)
			})
			s.hub.writeWithin = time.Second
			server, _ := s.start(t, func(server *httptest.Server) { server.EnableHTTP2 = major == 2 })
			var query strings.Builder
			for i := range 450 { // more at each read than the buffers on the way have room for in a while
				fmt.Fprintf(&query, "key=%s%d&", strings.Repeat("k", 500), i)
			}
			deaf := listen(t, server, query.String()+"window=1m")
			require.Equal(t, major, deaf.major)
			one := listen(t, server, "key=a&window=1m")
			stack.Eventually(t, "the deaf client to be dropped", func() (bool, string) {
				_, _, _, ok := one.next()
				require.True(t, ok, "the other client is dropped")
				clients, questions := s.hub.sizes()
				return clients == 1, fmt.Sprintf("%d clients with %d questions", clients, questions)
			})
		})
	}
}
