package consume

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/consume/source"
	"tallyroll/tests/stack"
)

// askedStream is a stream with 40 messages, some of them deleted, and what asks it.
func askedStream(t *testing.T, js jetstream.JetStream, replicas int) (*source.JetStream, []time.Time) {
	t.Helper()
	handle, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "HITS", Subjects: []string{"hits.>"}, Replicas: replicas, AllowDirect: true,
	})
	require.NoError(t, err)
	stored := make([]time.Time, 41) // by sequence
	for seq := uint64(1); seq <= 40; seq++ {
		require.NoError(t, errOf(js.Publish(t.Context(), "hits.c", nil)))
		stack.Eventually(t, "the replica that is asked to have the message", func() (bool, string) {
			m, err := handle.GetMsg(t.Context(), seq)
			if err == nil {
				stored[seq] = m.Time
			}
			return err == nil, fmt.Sprint(err)
		})
	}
	for _, seq := range []uint64{1, 2, 10, 11, 12, 20, 30, 31, 40} {
		require.NoError(t, handle.DeleteMsg(t.Context(), seq))
	}
	return source.New(js, "tallyroll", "HITS", 1<<20), stored
}

// testHistory compares what the stream's leader answers with what was stored.
func testHistory(t *testing.T, s *source.JetStream, stored []time.Time) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stack.Hung)
	defer cancel()
	state, err := source.Confirmed(ctx, s)
	if err != nil || state.First != 3 || state.Last != 40 {
		t.Fatalf("%+v %v, want 3 to 40", state, err)
	}
	h := newHistory(s, state)
	deleted := map[uint64]bool{1: true, 2: true, 10: true, 11: true, 12: true, 20: true, 30: true, 31: true, 40: true}
	held := []uint64{}
	for seq := uint64(1); seq <= 40; seq++ {
		want := stored[seq].UnixNano()
		if deleted[seq] {
			want = 0
		} else {
			held = append(held, seq)
		}
		if got, err := h.storedAt(ctx, seq); err != nil || got != want {
			t.Errorf("message %d: stored at %d (%v), want %d", seq, got, err, want)
		}
	}
	// The sequence before the first message held that is later.
	for _, moment := range append(stored[1:], stored[1].Add(-time.Hour), stored[40].Add(time.Hour)) {
		want := uint64(40)
		for _, seq := range held {
			if stored[seq].After(moment) {
				want = seq - 1
				break
			}
		}
		if got, err := h.lastUpTo(ctx, moment.UnixNano(), state.Last); err != nil || got != want {
			t.Errorf("the last up to %s: %d (%v), want %d", moment, got, err, want)
		}
	}
}

func TestHistoryOfAStreamWithGapsIsRead(t *testing.T) {
	t.Parallel()
	s, stored := askedStream(t, stack.NATS(t).JetStream(), 1)
	l, err := s.Check(t.Context())
	if err != nil || l.Leadership != (source.Leadership{}) {
		t.Errorf("a server without a cluster: %+v %v", l.Leadership, err)
	}
	testHistory(t, s, stored)
}

func TestHistoryIsReadOnlyFromALeaderWithAMajority(t *testing.T) {
	t.Parallel()
	c := stack.NATSCluster(t)
	js := c.JetStream()
	s, stored := askedStream(t, js, 3)
	testHistory(t, s, stored)

	l, err := s.Check(t.Context())
	if err != nil || !l.Leadership.Clustered || !l.Leadership.Majority || l.Leadership.Since.IsZero() || l.Leadership.Leader != c.Name(c.Leader(js, "HITS")) {
		t.Fatalf("%+v %v", l.Leadership, err)
	}
	began := time.Now()
	require.NoError(t, errOf(source.Confirmed(t.Context(), s)))
	t.Logf("a state of an idle stream was confirmed in %s", time.Since(began).Round(time.Millisecond))

	// A leader without its followers is not believed, though it answers.
	leader := c.Leader(js, "HITS")
	for i, server := range c.Servers {
		if i != leader {
			server.Pause()
		}
	}
	alone := source.New(c.Servers[leader].JetStream(), "tallyroll", "HITS", 1<<20)
	stack.Eventually(t, "the leader to be alone", func() (bool, string) {
		state, err := source.Confirmed(t.Context(), alone)
		return errors.Is(err, source.ErrUnconfirmed), fmt.Sprintf("%+v %v", state, err)
	})
	for i, server := range c.Servers {
		if i != leader {
			server.Resume()
		}
	}
	stack.Eventually(t, "a leader with followers", func() (bool, string) {
		state, err := source.Confirmed(t.Context(), s)
		return err == nil && state.Last == 40, fmt.Sprintf("%+v %v", state, err)
	})
}
