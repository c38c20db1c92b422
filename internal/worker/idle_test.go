package worker

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// atRest waits until as_of is so far beyond every shard's cursor that only a claim can have told it: cursors
// that are not at rest move once per second.
func (r *rig) atRest() {
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

func TestAStreamAtRestIsClaimed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.createStream(0)
	r.start()
	r.settled(0) // nothing was ever stored
	r.atRest()
	r.publish(5)
	r.settled(5)
	r.atRest()

	// Redis has fallen back to before the hits.
	claimed := r.redis.Client().HGet(t.Context(), "test:idle", "HITS").Val()
	keys := append(stack.Scan(t, r.redis.Client(), "test:{*"), "test:idle")
	require.NoError(t, r.redis.Client().Del(t.Context(), keys...).Err())
	r.logs.await(t, "taking the stream again", window.ErrRewound.Error())
	r.settled(5)
	r.atRest()

	// The claims alone have fallen back: that is no reason to take the stream again.
	require.NoError(t, r.redis.Client().HSet(t.Context(), "test:idle", "HITS", claimed).Err())
	r.settled(5)
	r.atRest()
	if n := r.logs.count("taking the stream again"); n != 1 {
		t.Errorf("the stream was taken again %d times, want once", n)
	}
}

// If the claims cannot be written, the cursors move as if there were none.
func TestForeignClaimsStopNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.counting(5)
	require.NoError(t, r.redis.Client().Set(t.Context(), "test:idle", "not ours", 0).Err())
	r.logs.await(t, "could not be written", "test:idle")
	r.publish(5)
	r.cursors(10)
	for range 3 {
		before := r.cursor(0).AsOf
		stack.Eventually(t, "the cursors to move", func() (bool, string) { return r.cursor(0).AsOf > before, "as_of stands still" })
	}
	var foreign *window.ForeignError
	if _, err := r.answer(); !errors.As(err, &foreign) {
		t.Errorf("an answer without the claims: %v", err)
	}
	require.NoError(t, r.redis.Client().Del(t.Context(), "test:idle").Err())
	r.settled(10)
	r.atRest()
	if n := w.metric("sessions_total"); n != 1 {
		t.Errorf("%v sessions, want one", n)
	}
}
