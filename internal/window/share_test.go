package window_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
	"tallyroll/tests/stack"
)

// Questions that share a trip have answers and errors of their own: a bad question, a key that another
// program has written to and an asker who leaves are no trouble to the others.
func TestQuestionsOfOneTripAreIndependent(t *testing.T) {
	t.Parallel()
	r := newRig(t, startServer(t))
	now, s := time.Now(), r.open("HITS")
	for i, name := range []string{"good", "garbage", "other", "far"} {
		s.commit(name, now, int64(i+1))
	}
	for _, key := range stack.Scan(t, r.client, "test:*:h:*:garbage") {
		require.NoError(t, r.client.HSet(t.Context(), key, "no field", "no value").Err())
	}
	for _, key := range stack.Scan(t, r.client, "test:*:h:*:other") {
		require.NoError(t, r.client.Del(t.Context(), key).Err())
		require.NoError(t, r.client.Set(t.Context(), key, "a string", 0).Err())
	}
	reader := read.NewReader(r.store)
	require.NoError(t, errOf(reader.Look(t.Context())))
	gate := make(chan struct{}) // lets no trip pass before it is closed
	var trips atomic.Int64
	r.addHook(t, func(_ context.Context, cmds []redis.Cmder, send func([]redis.Cmder) error) error {
		if cmds[0].Name() == "get" {
			trips.Add(1)
			<-gate
		}
		return send(cmds)
	})

	var group sync.WaitGroup
	ask := func(ctx context.Context, check func(window.Answers, error), questions ...window.Question) {
		group.Go(func() { check(reader.Answer(ctx, questions)) })
	}
	minute := func(name string) window.Question {
		return window.Question{Counter: name, Span: window.Last(time.Minute)}
	}
	has := func(want int64) func(window.Answers, error) {
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
		ask(t.Context(), has(1), minute("good"))
	}
	stack.Eventually(t, "two trips", func() (bool, string) { return trips.Load() == 2, fmt.Sprint(trips.Load()) })
	impatient, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	ask(impatient, func(_ window.Answers, err error) { left <- err }, minute("good"))
	ask(t.Context(), has(1), minute("good"))
	ask(t.Context(), has(4), minute("far"))
	ask(t.Context(), foreign, minute("good"), minute("garbage"))
	ask(t.Context(), foreign, minute("far"), minute("other"))
	ask(t.Context(), func(_ window.Answers, err error) {
		var bad *window.QuestionError
		if !errors.As(err, &bad) {
			t.Errorf("a question that no tier answers: %v", err)
		}
	}, window.Question{Counter: "good", Span: window.Last(math.MaxInt64 / 2)})
	stack.Eventually(t, "four counters on one trip", func() (bool, string) {
		n := reader.Gathered()
		return n >= 4, fmt.Sprint(n)
	})
	leave()
	require.ErrorIs(t, <-left, context.Canceled, "although Redis hangs")
	close(gate)
	group.Wait()
	require.Less(t, trips.Load(), int64(2+6), "trips; on a busy machine those who come together may need two")
}
