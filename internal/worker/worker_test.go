package worker

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

func TestTwoWorkersFenceEachOther(t *testing.T) {
	t.Parallel()
	nats, loner := withLoner(t)
	r := newRigOn(t, nats)
	r.createStream(0)
	workers := []*running{r.start("INGEST_WORKER=a"), r.start(append(loner, "INGEST_WORKER=b")...)}
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
	r.settled(int64(hits))
	counted := 0.0
	for _, w := range workers {
		counted += w.metric("hits_total")
	}
	if counted != float64(hits) {
		t.Errorf("the workers say that they have counted %v", counted)
	}
	for _, w := range workers {
		w.stop()
	}
	if a, err := r.answer(); err != nil || a.Answers[0].Total != int64(hits) {
		t.Errorf("after both have stopped: %+v %v", a, err)
	}
}

func TestMessagesDeletedInTheMiddle(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	handle := r.createStream(0)
	r.publish(30)
	for _, seq := range []uint64{10, 11, 20} {
		require.NoError(t, handle.DeleteMsg(t.Context(), seq))
	}
	w := r.start()
	if a := r.settled(27); a.Complete {
		t.Error("the answer says that it is complete")
	}
	w.discarded(3)
}

// The last messages of a stream are gone before they are read: nothing that is
// delivered shows the gap, and as_of must not wait for it.
func TestMessagesGoneAtTheEnd(t *testing.T) {
	t.Parallel()
	gone := func(handle jetstream.Stream, left uint64) {
		stack.Eventually(t, "messages to expire", func() (bool, string) {
			info, err := handle.Info(t.Context())
			return err == nil && info.State.Msgs == left, fmt.Sprintf("%+v %v", info, err)
		})
	}
	t.Run("all expired", func(t *testing.T) {
		r := newRig(t)
		handle := r.createStream(time.Second)
		r.publish(10)
		gone(handle, 0)
		w := r.start()
		r.settled(0)
		w.discarded(10)
	})
	t.Run("the last deleted", func(t *testing.T) {
		r := newRig(t)
		handle := r.createStream(0)
		r.publish(10)
		for _, seq := range []uint64{9, 10} {
			require.NoError(t, handle.DeleteMsg(t.Context(), seq))
		}
		gone(handle, 8)
		w := r.start()
		if a := r.settled(8); a.Complete {
			t.Error("the answer says that it is complete")
		}
		r.publish(3)
		r.settled(11)
		w.discarded(2)
	})
	t.Run("all but the first deleted", func(t *testing.T) {
		r := newRig(t)
		handle := r.createStream(0)
		r.publish(3)
		w := r.start()
		r.settled(3)
		w.stop()
		r.publish(2)
		for _, seq := range []uint64{4, 5} {
			require.NoError(t, handle.DeleteMsg(t.Context(), seq))
		}
		w = r.start()
		r.settled(3)
		if sessions := w.metric("sessions_total"); sessions != 1 {
			t.Errorf("%v sessions, want 1", sessions)
		}
	})
}

// A producer's bad hits are found again beside the good ones' count.
func TestRejectsAreStoredOnceAcrossWorkers(t *testing.T) {
	t.Parallel()
	nats, loner := withLoner(t)
	r := newRigOn(t, nats)
	r.createStream(0)
	for range 3 {
		require.NoError(t, errOf(r.js.Publish(t.Context(), "hits.c", []byte(`[{},{"n":0},{},{"key":""}]`))))
	}
	r.start("INGEST_WORKER=a")
	r.start(append(loner, "INGEST_WORKER=b")...)
	r.settled(6)
	if got := rejectsStored(t, r.js); got != 6 {
		t.Errorf("%d rejects stored, want 6", got)
	}
}
