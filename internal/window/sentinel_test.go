package window_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// A commit finds the new master, whether the old one died or became a replica
// that answers READONLY.
func TestCommitsFollowTheSentinels(t *testing.T) {
	t.Parallel()
	sentinels := stack.Sentinels(t, 1)
	r := newRig(t, &backend{client: stack.ProgramClient(t, sentinels.URL())})
	now := time.Now()
	batch, shard := batchOf("a", now.UnixMilli(), 1)
	w := r.writers()[shard]
	w.OnRetry = func(err error) { t.Logf("refused: %v", err) }
	commit := func(seq uint64) {
		t.Helper()
		require.NoError(t, errOf(w.Commit(t.Context(), batch.Shard(shard), cursorAt(seq, now))))
		// Replication is asynchronous, and what a replica lacks is not the subject
		// here. WAIT is for the writes of its own connection: all before it come first.
		var replicas *redis.Cmd
		require.NoError(t, errOf(r.client.Pipelined(t.Context(), func(p redis.Pipeliner) error {
			p.Set(t.Context(), "marker", seq, 0)
			replicas = p.Do(t.Context(), "wait", 1, 4000)
			return nil
		})))
		if n, err := replicas.Int(); n != 1 || err != nil {
			t.Fatalf("%d replicas have commit %d, %v", n, seq, err)
		}
	}
	commit(1)
	old := sentinels.Master()
	sentinels.FailOver()
	commit(2)
	if now := sentinels.Master(); now == old {
		t.Errorf("%s is still the master", old.Addr())
	}
	sentinels.Master().Kill()
	require.NoError(t, errOf(w.Commit(t.Context(), batch.Shard(shard), cursorAt(3, now))))
	require.EqualValues(t, 3, r.total("a", time.Minute, now.Add(time.Second)).Upper)
}
