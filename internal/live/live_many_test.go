package live

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/answer"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
	"tallyroll/internal/window"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// One connection hears about every counter in every window, each question once, and about
// as_of as long as nothing changes.
func TestLiveOfManyQuestions(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	asking.Seed(t, redis.Client(), now, asking.Hits("a", now.Add(-time.Minute), 5), asking.Hits("b", now.Add(-30*time.Minute), 7))
	s := onRedis(t, redis.URL(), now)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { _ = s.hub.serve(ctx); close(ended) }()
	server := httptest.NewServer(s.handler())
	defer server.Close()
	defer func() { stop(); <-ended }()

	one := listen(t, server.URL, "key=a&key=b&key=a&window=10m&window=1h&as_of=true", "Last-Event-ID", "5-5-5-false")
	hear := func() (event string, got answer.Total, raw string) {
		t.Helper()
		event, _, raw, ok := one.next()
		if !ok {
			t.Fatal("the stream has ended")
		}
		err := json.Unmarshal([]byte(raw), &got)
		require.NoErrorf(t, err, "%s", raw)
		return event, got, raw
	}
	for _, want := range []answer.Total{{Key: "a", Window: "10m", Total: 5}, {Key: "a", Window: "1h", Total: 5}, {Key: "b", Window: "10m"}, {Key: "b", Window: "1h", Total: 7}} {
		event, got, _ := hear()
		if event != "total" || got.Key != want.Key || got.Window != want.Window || got.Total != want.Total {
			t.Errorf("event %s: %+v, want %+v", event, got, want)
		}
	}
	for range 2 {
		if event, _, raw := hear(); event != "as_of" || !strings.Contains(raw, string(api.Encode(reach{now.Truncate(time.Millisecond), now}))[1:20]) {
			t.Errorf("event %s: %s", event, raw)
		}
	}
	if clients, questions := s.hub.sizes(); clients != 1 || questions != 4 {
		t.Errorf("%d clients with %d questions", clients, questions)
	}
	asking.Late(t, redis.Client(), now, asking.Hits("b", now.Add(-time.Minute), 2))
	heard := make(map[string]int64)
	for len(heard) < 2 {
		event, got, _ := hear()
		if event == "total" {
			heard[got.Key+" "+got.Window] = got.Total
		}
	}
	if heard["b 10m"] != 2 || heard["b 1h"] != 9 {
		t.Errorf("after two more hits of b: %v", heard)
	}
}

// A client that asks many questions is refused as a whole, and leaves nothing behind.
func TestHubBoundsQuestionsTogether(t *testing.T) {
	t.Parallel()
	h, _ := scripted(totalsIn)
	h.maxQuestions = 3
	join(t, h, "a")
	ask := func(keys ...string) (*listener, error) {
		var asked []question
		for _, key := range keys {
			asked = append(asked, question{key, "1m"})
		}
		return h.join(asked, make([]time.Duration, len(asked)), false)
	}
	if _, err := ask("a", "b", "c", "d"); err == nil || !strings.Contains(err.Error(), "would add 3") {
		t.Errorf("four questions where three fit: %v", err)
	}
	if clients, questions := h.sizes(); clients != 1 || questions != 1 {
		t.Errorf("the refused client has left %d clients and %d questions", clients, questions)
	}
	l, err := ask("a", "b", "c")
	require.NoError(t, err)
	h.leave(l)
	if clients, questions := h.sizes(); clients != 1 || questions != 1 {
		t.Errorf("%d clients and %d questions are left", clients, questions)
	}
}

// Only those who want as_of hear of it, once per second, and not while Redis is away.
func TestHubTellsAsOf(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, _ := scripted(func(n int64, questions []window.Question) (window.Answers, error) {
			if n > 20 {
				return window.Answers{}, web.NewProblem(http.StatusServiceUnavailable, "down")
			}
			return totalsIn(1, questions)
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { _ = h.serve(ctx); close(done) }()
		asked, lengths := []question{{"a", "1m"}}, []time.Duration{time.Minute}
		with, err := h.join(asked, lengths, true)
		require.NoError(t, err)
		without, err := h.join(asked, lengths, false)
		require.NoError(t, err)
		count := map[*listener]int{}
		for range 100 {
			synctest.Wait()
			for _, l := range []*listener{with, without} {
				count[l] += strings.Count(string(l.events()), "event: as_of\n")
			}
			time.Sleep(100 * time.Millisecond)
		}
		if count[with] != 5 || count[without] != 0 {
			t.Errorf("%d and %d events as_of in five seconds with Redis and five without, want 5 and 0", count[with], count[without])
		}
		cancel()
		<-done
	})
}
