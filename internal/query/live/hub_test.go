package live

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/query/answer"
	"tallyroll/internal/web"
	"tallyroll/internal/window"
)

// newScriptedHub returns a hub that reads from a script, and the number of its reads.
func newScriptedHub(answer func(n int64, questions []window.Question) (window.Answers, error)) (*hub, *atomic.Int64) {
	reads := new(atomic.Int64)
	return newHub(func(_ context.Context, questions []window.Question) (window.Answers, error) {
		return answer(reads.Add(1), questions)
	}, 2000, 10, prometheus.NewRegistry()), reads
}

// run has the hub read until stop returns.
func (h *hub) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = h.serve(ctx) })
	return func() { cancel(); running.Wait() }
}

// totalsIn answers every question with a total.
func totalsIn(total int64, questions []window.Question) (window.Answers, error) {
	out := window.Answers{Answers: make([]window.Answer, len(questions))}
	for i := range out.Answers {
		out.Answers[i].Estimate = window.Estimate{Total: total, Lower: total, Upper: total}
	}
	return out, nil
}

// ask joins with a question about each counter.
func (h *hub) ask(asOf bool, keys ...string) (*listener, error) {
	var asked []question
	for _, key := range keys {
		asked = append(asked, question{key, "1m"})
	}
	return h.join(asked, make([]time.Duration, len(asked)), asOf)
}

func mustJoin(t *testing.T, h *hub, keys ...string) *listener {
	t.Helper()
	l, err := h.ask(false, keys...)
	require.NoError(t, err)
	return l
}

func requireSizes(t *testing.T, h *hub, clients, questions int) {
	t.Helper()
	gotClients, gotQuestions := h.sizes()
	require.Equal(t, [2]int{clients, questions}, [2]int{gotClients, gotQuestions}, "clients and questions")
}

// next waits for news of a listener with one question, which are nil once the hub has stopped.
func (l *listener) next() *result {
	<-l.ready
	return l.drain()[0]
}

// A thousand clients cost one read every quarter of a second, a client that takes nothing holds up no other,
// and nothing is read while there are none.
func TestHubReadsOnceForAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, reads := newScriptedHub(totalsIn)
		defer h.run()()
		time.Sleep(10 * time.Second)
		require.Zero(t, reads.Load(), "before there is a client")
		all := make([]*listener, 1000)
		for i := range all {
			all[i] = mustJoin(t, h, "a")
		}
		slow := all[0]
		for range 10 {
			time.Sleep(time.Second)
			synctest.Wait()
			for _, l := range all[1:] {
				require.Equal(t, reads.Load(), l.next().total.Total)
			}
		}
		require.InDelta(t, 41, reads.Load(), 1, "four a second, for ten seconds")
		require.Equal(t, reads.Load(), slow.next().total.Total, "the slow client is told the latest")
		for _, l := range all {
			h.leave(l)
		}
		synctest.Wait()
		before := reads.Load()
		time.Sleep(10 * time.Second)
		require.LessOrEqual(t, reads.Load(), before+1, "after all have left")
		requireSizes(t, h, 0, 0)
	})
}

// The hub sends only changes, and trouble once. A question without an answer takes nothing from the others.
func TestHubSendsChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		down := web.NewProblem(http.StatusServiceUnavailable, "down")
		h, _ := newScriptedHub(func(n int64, questions []window.Question) (window.Answers, error) {
			for i, q := range questions {
				if q.Counter == "bad" {
					return window.Answers{}, &window.QuestionError{Index: i, Err: errors.New("out of reach")}
				}
			}
			if n >= 20 && n < 40 {
				return window.Answers{}, down
			}
			return totalsIn(1, questions)
		})
		stop := h.run()
		good, bad := mustJoin(t, h, "good"), mustJoin(t, h, "bad")
		require.Error(t, bad.next().err)
		h.leave(bad)
		for _, want := range []error{nil, down, nil} {
			require.ErrorIs(t, good.next().err, want)
		}
		time.Sleep(time.Minute)
		require.Empty(t, good.ready, "nothing has changed")
		stop()
		_, open := <-good.ready
		require.False(t, open, "the hub has stopped")
		_, err := h.ask(false, "a")
		require.Error(t, err, "the hub has stopped")
	})
}

// A listener gets one message that its question is not answered, and another one if the reason asks something
// else of it: when Redis is back, its tiers may be others, and the window one that they do not hold.
func TestHubSendsAnotherProblemAfterAProblem(t *testing.T) {
	t.Parallel()
	var err error
	h, _ := newScriptedHub(func(int64, []window.Question) (window.Answers, error) { return window.Answers{}, err })
	l := mustJoin(t, h, "a")
	away := web.RetryLater("Redis cannot answer now: ask again in a second", "1")
	refused := &window.QuestionError{Err: errors.New("the question reaches back 168h0m0s, further than any tier")}
	for i, step := range []struct {
		err    error
		status int // that is sent; 0 if there is nothing new
	}{{away, 503}, {away, 0}, {refused, 400}, {refused, 0}, {away, 503}} {
		err = step.err
		h.answerAll(t.Context())
		got := 0
		if n := l.drain()[0]; n != nil {
			got = n.problem().Status
		}
		require.Equal(t, step.status, got, "step %d", i)
	}
}

// Only those who want as_of hear of it, once per second, and not while Redis is away.
func TestHubSendsAsOfOncePerSecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, _ := newScriptedHub(func(n int64, questions []window.Question) (window.Answers, error) {
			if n > 20 {
				return window.Answers{}, web.NewProblem(http.StatusServiceUnavailable, "down")
			}
			return totalsIn(1, questions)
		})
		defer h.run()()
		with, err := h.ask(true, "a")
		require.NoError(t, err)
		without := mustJoin(t, h, "a")
		count := map[*listener]int{}
		for range 100 {
			synctest.Wait()
			for _, l := range []*listener{with, without} {
				count[l] += strings.Count(string(l.events()), "event: as_of\n")
			}
			time.Sleep(100 * time.Millisecond)
		}
		require.Equal(t, 5, count[with], "in five seconds with Redis and five without")
		require.Zero(t, count[without])
	})
}

// A client beyond a bound is refused as a whole, and leaves nothing behind.
func TestHubRefusesBeyondItsBounds(t *testing.T) {
	t.Parallel()
	h, _ := newScriptedHub(totalsIn)
	h.maxClients, h.maxQuestions = 3, 3
	mustJoin(t, h, "a")
	_, err := h.ask(false, "a", "b", "c", "d")
	require.ErrorContains(t, err, "would add 3: at most 3 are allowed (QUERY_LIVE_QUESTIONS)")
	requireSizes(t, h, 1, 1)
	l := mustJoin(t, h, "a", "b", "c")
	mustJoin(t, h, "a")
	_, err = h.ask(false, "a")
	require.ErrorContains(t, err, "QUERY_LIVE_CLIENTS")
	h.leave(l)
	requireSizes(t, h, 2, 1)
	mustJoin(t, h, "d")
}

// Clients that join and leave at the same time leave nothing behind, and the bounds hold throughout.
func TestHubBoundsHoldUnderLoad(t *testing.T) {
	t.Parallel()
	h, _ := newScriptedHub(totalsIn)
	h.maxClients, h.maxQuestions = 30, 40
	defer h.run()()
	var running sync.WaitGroup
	for who := range 8 {
		running.Go(func() {
			for n := range 300 {
				keys := make([]string, 1+(who*7+n)%12)
				for i := range keys {
					keys[i] = fmt.Sprint(who%3, n%4, i)
				}
				l, err := h.ask(false, keys...)
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
	requireSizes(t, h, 0, 0)
}

// A connection is kept alive, and ends when the service does.
func TestHeartbeatKeepsAConnectionAlive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, _ := newScriptedHub(totalsIn)
		l := newListener(h, 1, false)
		first := newResult(answer.Total{Total: 7})
		first.text = first.event()
		w := httptest.NewRecorder()
		done := make(chan struct{})
		go func() {
			defer close(done)
			streamEvents(httptest.NewRequest(http.MethodGet, Path, nil), w, l, openingEvents([]*result{first}, ""))
		}()
		time.Sleep(50 * time.Second)
		close(l.ready)
		<-done
		text := w.Body.String()
		require.Equal(t, 3, strings.Count(text, ": still here\n\n"), "in 50 s")
		require.True(t, strings.HasPrefix(text, "retry: 2000\n\nid: 7-0-0-false\nevent: total\ndata: {"), text)
	})
}
