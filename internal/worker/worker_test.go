package worker

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/consume"
	"tallyroll/internal/consume/source"
	"tallyroll/internal/window"
	"tallyroll/internal/window/commit"
	"tallyroll/tests/stack"
)

func TestTwoWorkersOfOneStreamCountEachHitOnce(t *testing.T) {
	t.Parallel()
	r, isolated := newRigWithIsolatedUser(t)
	r.createStream(0)
	workers := []*runningWorker{r.start("INGEST_WORKER=a"), r.start(append(isolated, "INGEST_WORKER=b")...)}
	for _, w := range workers {
		stack.Eventually(t, "both workers to take the stream", func() (bool, string) {
			n := w.metric("sessions_total")
			return n >= 1, fmt.Sprint(n)
		})
	}
	// One of them may count all of a short burst before the other looks: go on
	// until they have met.
	hits := 0
	stack.Eventually(t, "the workers to be in each other's way", func() (bool, string) {
		r.publish(100)
		hits += 100
		conflicts := 0.0
		for _, w := range workers {
			conflicts += w.metric("cursor_conflicts_total")
		}
		return conflicts > 0, fmt.Sprintf("%v conflicts in %d hits", conflicts, hits)
	})
	r.awaitTotal(int64(hits))
	counted := 0.0
	for _, w := range workers {
		counted += w.metric("hits_total")
	}
	require.EqualValues(t, hits, counted)
	for _, w := range workers {
		w.stop()
	}
	if a, err := r.answer(); err != nil || a.Answers[0].Total != int64(hits) {
		t.Errorf("after both have stopped: %+v %v", a, err)
	}
}

func TestMessagesDeletedInTheMiddleMakeTheAnswerIncomplete(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	handle := r.createStream(0)
	r.publish(30)
	for _, seq := range []uint64{10, 11, 20} {
		require.NoError(t, handle.DeleteMsg(t.Context(), seq))
	}
	w := r.start()
	require.False(t, r.awaitTotal(27).Complete)
	w.awaitMetric("discarded_messages_total", 3)
}

// The last messages of a stream are gone before they are read: nothing that is
// delivered shows the gap, and as_of must not wait for it.
func TestMessagesGoneAtTheEndHoldNothingUp(t *testing.T) {
	t.Parallel()
	awaitGone := func(t *testing.T, handle jetstream.Stream, left uint64) {
		stack.Eventually(t, "messages to expire", func() (bool, string) {
			info, err := handle.Info(t.Context())
			return err == nil && info.State.Msgs == left, fmt.Sprintf("%+v %v", info, err)
		})
	}
	t.Run("all expired", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		handle := r.createStream(time.Second)
		r.publish(10)
		awaitGone(t, handle, 0)
		w := r.start()
		r.awaitTotal(0)
		w.awaitMetric("discarded_messages_total", 10)
	})
	t.Run("the last deleted", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		handle := r.createStream(0)
		r.publish(10)
		for _, seq := range []uint64{9, 10} {
			require.NoError(t, handle.DeleteMsg(t.Context(), seq))
		}
		awaitGone(t, handle, 8)
		w := r.start()
		require.False(t, r.awaitTotal(8).Complete)
		r.publish(3)
		r.awaitTotal(11)
		w.awaitMetric("discarded_messages_total", 2)
	})
	t.Run("all but the first deleted", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		handle := r.createStream(0)
		r.publish(3)
		w := r.start()
		r.awaitTotal(3)
		w.stop()
		r.publish(2)
		for _, seq := range []uint64{4, 5} {
			require.NoError(t, handle.DeleteMsg(t.Context(), seq))
		}
		w = r.start()
		r.awaitTotal(3)
		require.EqualValues(t, 1, w.metric("sessions_total"))
	})
}

// A producer's bad hits are stored as rejects, and its good ones are counted.
func TestRejectsOfTwoWorkersAreStoredOnce(t *testing.T) {
	t.Parallel()
	r, isolated := newRigWithIsolatedUser(t)
	r.createStream(0)
	for range 3 {
		require.NoError(t, errOf(r.js.Publish(t.Context(), "hits.c", []byte(`[{},{"n":0},{},{"key":""}]`))))
	}
	r.start("INGEST_WORKER=a")
	r.start(append(isolated, "INGEST_WORKER=b")...)
	r.awaitTotal(6)
	require.EqualValues(t, 6, r.countRejects())
}

// A message that claims in its headers to be a note of the server's counts like any other,
// unless it has the very form of one, which the server accepts from no client
// in a stream without markers.
func TestMarkerOfAProducerCounts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.createStream(0)
	exact := map[string]string{"Nats-Marker-Reason": "MaxAge", "Nats-TTL": "1h0m0s", "Nats-Rollup": "sub"}
	publish := func(headers map[string]string, body string) error {
		m := nats.NewMsg("hits.c")
		m.Data = []byte(body)
		for name, value := range headers {
			m.Header.Set(name, value)
		}
		_, err := r.js.PublishMsg(t.Context(), m)
		return err
	}
	for _, headers := range []map[string]string{
		{"Nats-Marker-Reason": "MaxAge"},
		{"Nats-Marker-Reason": "Purge", "Nats-Marker-Other": "x"},
		{"Nats-Marker-Reason": "Remove", "A": "b", "C": "d"},
	} {
		require.NoError(t, publish(headers, ""))
	}
	require.NoError(t, publish(map[string]string{"Nats-Marker-Reason": "MaxAge"}, `{"n":2}`))
	require.Error(t, publish(exact, ""), "the server stores the form of its own notes in a stream without them")
	w := r.start()
	r.awaitTotal(5)
	require.Zero(t, w.metric("skipped_messages_total"))
}

// The server's own notes are skipped, and counted in the metric.
func TestMarkersOfTheServerAreSkipped(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.startCounting(3)
	_, err := r.js.UpdateStream(t.Context(), jetstream.StreamConfig{
		Name: "HITS", Subjects: []string{"hits.>"}, MaxAge: time.Second, SubjectDeleteMarkerTTL: 90 * time.Second,
	})
	require.NoError(t, err)
	w.awaitMetric("skipped_messages_total", 1)
	require.NoError(t, errOf(r.js.UpdateStream(t.Context(), jetstream.StreamConfig{
		Name: "HITS", Subjects: []string{"hits.>"}, MaxAge: time.Hour, SubjectDeleteMarkerTTL: 90 * time.Second,
	})))
	r.publish(1)
	r.awaitTotal(4)
}

// awaitRest waits until as_of is so far beyond every shard's cursor that only a claim can have told it:
// cursors that are not at rest move once per second.
func (r *rig) awaitRest() {
	r.t.Helper()
	stack.Eventually(r.t, "as_of to move while the cursors stand", func() (bool, string) {
		got, err := r.answer()
		var cursors int64
		for shard := range testLayout.Shards {
			cursors = max(cursors, r.cursor(shard).AsOf)
		}
		return err == nil && got.AsOf > cursors+2*time.Second.Milliseconds(), fmt.Sprintf("%+v %v, the cursors' is %d", got, err, cursors)
	})
}

func TestAsOfOfAStreamAtRestMovesByClaims(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.createStream(0)
	r.start()
	r.awaitTotal(0) // nothing was ever stored
	r.awaitRest()
	r.publish(5)
	r.awaitTotal(5)
	r.awaitRest()

	// Redis has fallen back to before the hits.
	claimed := r.redis.Client().HGet(t.Context(), "test:idle", "HITS").Val()
	keys := append(stack.Scan(t, r.redis.Client(), "test:{*"), "test:idle")
	require.NoError(t, r.redis.Client().Del(t.Context(), keys...).Err())
	r.logs.await(t, "restarting the session", commit.ErrRewound.Error())
	r.awaitTotal(5)
	r.awaitRest()

	// The claims alone have fallen back: that is no reason to take the stream again.
	require.NoError(t, r.redis.Client().HSet(t.Context(), "test:idle", "HITS", claimed).Err())
	r.awaitTotal(5)
	r.awaitRest()
	require.Equal(t, 1, r.logs.count("restarting the session"))
}

func TestCursorsMoveWhileClaimsCannotBeWritten(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.startCounting(5)
	require.NoError(t, r.redis.Client().Set(t.Context(), "test:idle", "not ours", 0).Err())
	r.logs.await(t, "cannot write as_of of idle streams", "test:idle")
	r.publish(5)
	r.awaitCursors("at 10", func(c window.Cursor) bool { return c.Seq == 10 })
	for range 3 {
		before := r.cursor(0).AsOf
		stack.Eventually(t, "the cursors to move", func() (bool, string) { return r.cursor(0).AsOf > before, "as_of stands still" })
	}
	var foreign *window.ForeignError
	if _, err := r.answer(); !errors.As(err, &foreign) {
		t.Errorf("an answer without the claims: %v", err)
	}
	require.NoError(t, r.redis.Client().Del(t.Context(), "test:idle").Err())
	r.awaitTotal(10)
	r.awaitRest()
	require.EqualValues(t, 1, w.metric("sessions_total"))
}

func TestStepsOfAStopFitIntoItsTime(t *testing.T) {
	t.Parallel()
	const promised = 10 * time.Second
	require.Less(t, consume.LastCommitWithin+source.ReleaseWithin+leaveWithin, stopWithin)
	require.Less(t, stopWithin, promised)
}

func TestWorkerThatHangsEndsWhenItsTimeToStopIsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		failed := errors.New("failed")
		ended := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Hour, func() { ended <- failed })
		if err, late := awaitEnd(ctx, ended); err != failed || late {
			t.Errorf("a worker that ends by itself: %v, late %v", err, late)
		}
		time.AfterFunc(time.Hour, cancel)
		time.AfterFunc(time.Hour+stopWithin-time.Millisecond, func() { ended <- nil })
		if err, late := awaitEnd(ctx, ended); err != nil || late {
			t.Errorf("one that stops in time: %v, late %v", err, late)
		}
		began := time.Now()
		if err, late := awaitEnd(ctx, ended); err != nil || !late || time.Since(began) != stopWithin {
			t.Errorf("one that hangs: %v, late %v, after %s", err, late, time.Since(began))
		}
	})
}
