package live

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/answer"
	"tallyroll/internal/web"
	"tallyroll/internal/window"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// scripted is a hub that reads from a script; reads counts.
func scripted(answer func(n int64, questions []window.Question) (window.Answers, error)) (*hub, *atomic.Int64) {
	reads := new(atomic.Int64)
	return newHub(func(_ context.Context, questions []window.Question) (window.Answers, error) {
		return answer(reads.Add(1), questions)
	}, 2000, 10, prometheus.NewRegistry()), reads
}

func totalsIn(n int64, questions []window.Question) (window.Answers, error) {
	out := window.Answers{Answers: make([]window.Answer, len(questions))}
	for i := range out.Answers {
		out.Answers[i].Estimate = window.Estimate{Total: n, Lower: n, Upper: n}
	}
	return out, nil
}

func join(t *testing.T, h *hub, key string) *listener {
	t.Helper()
	l, err := h.join([]question{{key, "1m"}}, []time.Duration{time.Minute}, false)
	require.NoError(t, err)
	return l
}

// next waits for news of a listener with one question, which are nil once the hub has stopped.
func (l *listener) next() *news {
	<-l.ready
	return l.take()[0]
}

// A thousand clients cost one read every quarter of a second, a client that takes
// nothing holds nobody up, and nothing is read once all have left.
func TestHubReadsOnceForAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, reads := scripted(totalsIn)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { _ = h.serve(ctx); close(done) }()
		time.Sleep(10 * time.Second)
		if n := reads.Load(); n != 0 {
			t.Errorf("%d reads before anybody listens", n)
		}
		all := make([]*listener, 1000)
		for i := range all {
			all[i] = join(t, h, "a")
		}
		slow := all[0]
		for second := range 10 {
			time.Sleep(time.Second)
			synctest.Wait()
			for _, l := range all[1:] {
				if n := l.next(); n.total.Total != reads.Load() {
					t.Fatalf("after %d s a client is told %d, want %d", second, n.total.Total, reads.Load())
				}
			}
		}
		if n := reads.Load(); n < 40 || n > 42 {
			t.Errorf("%d reads in ten seconds, want four a second", n)
		}
		if n := slow.next(); n.total.Total != reads.Load() {
			t.Errorf("the slow client is told %d first, want the latest, %d", n.total.Total, reads.Load())
		}
		for _, l := range all {
			h.leave(l)
		}
		synctest.Wait()
		before := reads.Load()
		time.Sleep(10 * time.Second)
		if n := reads.Load() - before; n > 1 {
			t.Errorf("%d reads after all have left", n)
		}
		if clients, questions := h.sizes(); clients != 0 || questions != 0 {
			t.Errorf("%d clients and %d questions are left", clients, questions)
		}
		cancel()
		<-done
	})
}

// Only changes are told, trouble is told once, and a question without an answer
// takes nothing from the others.
func TestHubTellsChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		down := web.NewProblem(http.StatusServiceUnavailable, "down")
		h, _ := scripted(func(n int64, questions []window.Question) (window.Answers, error) {
			for i, q := range questions {
				if q.Counter == "bad" {
					return window.Answers{}, &window.QuestionError{Index: i, Err: errors.New("out of reach")}
				}
			}
			switch {
			case n < 20:
				return totalsIn(1, questions)
			case n < 40:
				return window.Answers{}, down
			}
			return totalsIn(1, questions)
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan struct{})
		go func() { _ = h.serve(ctx); close(done) }()
		good, bad := join(t, h, "good"), join(t, h, "bad")
		if n := bad.next(); n.err == nil {
			t.Errorf("the bad question is answered: %+v", n)
		}
		h.leave(bad)
		for i, want := range []error{nil, down, nil} {
			if n := good.next(); !errors.Is(n.err, want) {
				t.Errorf("news %d: %v, want %v", i, n.err, want)
			}
		}
		time.Sleep(time.Minute)
		select {
		case <-good.ready:
			t.Errorf("told %+v though nothing has changed", good.take()[0])
		default:
		}
		cancel()
		<-done
		if _, ok := <-good.ready; ok {
			t.Error("the channel is open though the hub has stopped")
		}
		if _, err := h.join([]question{{"a", "1m"}}, []time.Duration{time.Minute}, false); err == nil {
			t.Error("a client was taken though the hub has stopped")
		}
	})
}

func TestHubIsBounded(t *testing.T) {
	t.Parallel()
	h, _ := scripted(totalsIn)
	h.maxClients, h.maxQuestions = 3, 2
	join(t, h, "a")
	l := join(t, h, "b")
	refusedFor := func(key, want string) {
		t.Helper()
		if _, err := h.join([]question{{key, "1m"}}, []time.Duration{time.Minute}, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("join %s: %v, want %s in it", key, err, want)
		}
	}
	refusedFor("c", "QUERY_LIVE_QUESTIONS")
	join(t, h, "a")
	refusedFor("a", "QUERY_LIVE_CLIENTS")
	h.leave(l)
	join(t, h, "c")
}

// A connection is kept alive, and ends when the service does.
func TestHeartbeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, _ := scripted(totalsIn)
		l := newListener(h, 1, false)
		first := newsOf(answer.Total{Total: 7})
		first.text = first.event()
		w := httptest.NewRecorder()
		done := make(chan struct{})
		go func() {
			defer close(done)
			streamNews(httptest.NewRequest(http.MethodGet, "/v1/live", nil), w, l, openingOf([]*news{first}, ""))
		}()
		time.Sleep(50 * time.Second)
		close(l.ready)
		<-done
		text := w.Body.String()
		if n := strings.Count(text, ": still here\n\n"); n != 3 || !strings.HasPrefix(text, "retry: 2000\n\nid: 7-0-0-false\nevent: total\ndata: {") {
			t.Errorf("%d heartbeats in 50 s, want 3:\n%s", n, text)
		}
	})
}

// stream is a client of /v1/live.
type stream struct {
	t     *testing.T
	lines *bufio.Scanner
	major int // of HTTP
}

func newStream(t *testing.T, resp *http.Response) *stream {
	lines := bufio.NewScanner(resp.Body)
	return &stream{t: t, lines: lines, major: resp.ProtoMajor}
}

// listen connects, and fails the test where that is refused.
func listen(t *testing.T, base, query string, headers ...string) *stream {
	t.Helper()
	return listenWith(t, http.DefaultClient, base, query, headers...)
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

// await reads events until a total is want, and returns its id.
func (s *stream) await(want int64) string {
	s.t.Helper()
	for {
		event, id, data, ok := s.next()
		if !ok {
			s.t.Fatalf("the stream ended before a total of %d", want)
		}
		var got answer.Total
		if err := json.Unmarshal([]byte(data), &got); event == "total" && err != nil {
			s.t.Fatalf("event %s: %v", data, err)
		}
		if event == "total" && got.Total == want {
			if got.Key != "a" || got.Window != "10m" || !got.To.After(got.From) {
				s.t.Errorf("event %+v", got)
			}
			return id
		}
	}
}

// readsOf is how often the hub has asked Redis.
func readsOf(t *testing.T, s *rig) int {
	t.Helper()
	text := string(asking.ReadAll(t, asking.Ask(s.handler(), http.MethodGet, "/metrics", "")))
	_, value, _ := strings.Cut(text, "\ntallyroll_query_live_reads_total ")
	value, _, _ = strings.Cut(value, "\n")
	n, err := strconv.Atoi(value)
	if err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return n
}

func TestLive(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	asking.Seed(t, redis.Client(), now, asking.Hits("a", now.Add(-time.Minute), 5))
	s := onRedis(t, redis.URL(), now)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { _ = s.hub.serve(ctx); close(ended) }()
	server := httptest.NewUnstartedServer(s.handler())
	// A stream outlasts the time that other requests have.
	server.Config.ReadTimeout, server.Config.WriteTimeout = 200*time.Millisecond, 200*time.Millisecond
	server.Start()
	defer server.Close()
	defer func() { stop(); <-ended }()

	all := make([]*stream, 20)
	for i := range all {
		all[i] = listen(t, server.URL, "key=a&window=10m")
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
		asking.Commit(t, window.NewStore(redis.Client(), asking.Namespace), asking.Layout(t), now, seq, []asking.Sample{asking.Hits("a", now.Add(-time.Minute), n)})
		seq++
	}
	id := ""
	for i, want := range []int64{6, 8, 11} {
		before := readsOf(t, s)
		stack.Eventually(t, "the server's timeouts to pass", func() (bool, string) {
			n := readsOf(t, s) - before
			return n > 2, fmt.Sprint(n)
		})
		add(int64(i + 1))
		for _, one := range all {
			id = one.await(want)
		}
	}
	t.Run("connecting again", func(t *testing.T) {
		same := listen(t, server.URL, "key=a&window=10m", "Last-Event-ID", id)
		other := listen(t, server.URL, "key=a&window=10m", "Last-Event-ID", "older")
		other.await(11)
		add(1)
		if _, newID, data, _ := same.next(); newID == id || !strings.Contains(data, `"total":12`) {
			t.Errorf("the first event after %s is %s: %s; want the next change", id, newID, data)
		}
	})
	t.Run("Redis goes and comes", func(t *testing.T) {
		one := listen(t, server.URL, "key=a&window=10m")
		one.await(12)
		redis.Stop()
		if event, _, data, ok := one.next(); event != "problem" || !ok || !strings.Contains(data, `"status":503`) {
			t.Errorf("event %s: %s", event, data)
		}
		redis.Start()
		one.await(12)
	})
	t.Run("all leave when the service stops", func(t *testing.T) {
		one := listen(t, server.URL, "key=a&window=10m")
		stop()
		for {
			if _, _, _, ok := one.next(); !ok {
				break
			}
		}
		asking.Refused(t, asking.Ask(s.handler(), http.MethodGet, "/v1/live?key=a&window=10m", ""), http.StatusServiceUnavailable)
	})
}

// A listener is told once that its question is not answered, and again if the reason asks something else of it: when
// Redis is back, its tiers may be others, and the window one that they do not hold.
func TestProblemAfterProblem(t *testing.T) {
	t.Parallel()
	var err error
	h := newHub(func(context.Context, []window.Question) (window.Answers, error) { return window.Answers{}, err }, 1, 1, prometheus.NewRegistry())
	l, refusal := h.join([]question{{"a", "7d"}}, []time.Duration{7 * 24 * time.Hour}, false)
	if refusal != nil {
		t.Fatal(refusal)
	}
	away := web.RetryLater("Redis cannot answer now: ask again in a second", "1")
	refused := &window.QuestionError{Err: errors.New("the question reaches back 168h0m0s, further than any tier")}
	for i, step := range []struct {
		err    error
		status int // that is told; 0 if there is nothing new
	}{{away, 503}, {away, 0}, {refused, 400}, {refused, 0}, {away, 503}} {
		err = step.err
		h.tellAll(t.Context())
		got := 0
		if n := l.take()[0]; n != nil {
			got = n.problem().Status
		}
		if got != step.status {
			t.Errorf("step %d: told of status %d, want %d", i, got, step.status)
		}
	}
}
