package window_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// Questions that share a trip have answers and errors of their own: a bad question, a key that another program
// has written to and an asker who leaves are no trouble to the others.
func TestNeighboursOnATrip(t *testing.T) {
	t.Parallel()
	r := newRig(t, startServer(t))
	now := time.Now()
	writers := r.writers()
	names := []string{"good", "garbage", "other", "far"}
	for i, name := range names {
		batch, shard := batchOf(name, now.UnixMilli(), int64(i+1))
		require.NoError(t, errOf(writers[shard].Commit(t.Context(), batch.Shard(shard), cursorAt(uint64(i+1), now))))
	}
	for _, key := range stack.Scan(t, r.client, "test:*:h:*:garbage") {
		require.NoError(t, r.client.HSet(t.Context(), key, "no field", "no value").Err())
	}
	for _, key := range stack.Scan(t, r.client, "test:*:h:*:other") {
		require.NoError(t, r.client.Del(t.Context(), key).Err())
		require.NoError(t, r.client.Set(t.Context(), key, "a string", 0).Err())
	}
	reader := window.NewReader(r.store)
	require.NoError(t, errOf(reader.Look(t.Context())))
	gate := &gate{open: make(chan struct{})}
	r.addHook(gate)

	var group sync.WaitGroup
	ask := func(ctx context.Context, check func(window.Answers, error), questions ...window.Question) {
		group.Go(func() {
			found, err := reader.Answer(ctx, questions)
			check(found, err)
		})
	}
	minute := func(name string) window.Question {
		return window.Question{Counter: name, Span: window.Last(time.Minute)}
	}
	is := func(want int64) func(window.Answers, error) {
		return func(found window.Answers, err error) {
			if err != nil || found.Answers[0].Upper != want || found.AsOf != now.UnixMilli() {
				t.Errorf("%+v %v; want %d", found, err, want)
			}
		}
	}
	foreign := func(found window.Answers, err error) {
		var bad *window.QuestionError
		var foreign *window.ForeignError
		if !errors.As(err, &bad) || bad.Index != 1 || !errors.As(err, &foreign) || !strings.Contains(foreign.Key, ":h:") {
			t.Errorf("%+v %v; want a foreign key of the second question", found, err)
		}
	}
	for range 2 { // trips that hang, so that the others gather
		ask(t.Context(), is(1), minute("good"))
	}
	stack.Eventually(t, "two trips", func() (bool, string) { n := gate.waiting(); return n == 2, fmt.Sprint(n) })
	impatient, leave := context.WithCancel(t.Context())
	left := make(chan struct{})
	ask(impatient, func(_ window.Answers, err error) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		close(left)
	}, minute("good"))
	ask(t.Context(), is(1), minute("good"))
	ask(t.Context(), is(4), minute("far"))
	ask(t.Context(), foreign, minute("good"), minute("garbage"))
	ask(t.Context(), foreign, minute("far"), minute("other"))
	ask(t.Context(), func(_ window.Answers, err error) {
		var bad *window.QuestionError
		if !errors.As(err, &bad) {
			t.Errorf("a question that no tier answers: %v", err)
		}
	}, window.Question{Counter: "good", Span: window.Last(math.MaxInt64 / 2)})
	stack.Eventually(t, "four counters on one trip", func() (bool, string) {
		n := window.Gathered(reader)
		return n >= 4, fmt.Sprint(n)
	})
	leave()
	<-left // although Redis hangs
	trips := gate.waiting()
	close(gate.open)
	group.Wait()
	if n := gate.waiting() - trips; n != 1 {
		t.Errorf("those who came together took %d trips", n)
	}
}

// gate is a hook that lets no pipeline pass before it is opened.
type gate struct {
	open chan struct{}
	mu   sync.Mutex
	came int
}

func (g *gate) waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.came
}

func (*gate) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*gate) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (g *gate) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() == "get" {
			g.mu.Lock()
			g.came++
			g.mu.Unlock()
			<-g.open
		}
		return next(ctx, cmds)
	}
}
