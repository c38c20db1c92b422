package worker

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/rejects"
	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// Hits that a transaction could not add, because something else has written to
// their key, are admitted: the answer is not complete once the key can be read again.
func TestHitsLostToAForeignKeyAreAdmitted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.counting(3)
	began := time.Now().UnixMilli() - 1 // a range is not empty
	ask := func() (window.Answer, error) {
		a, err := r.reader.Answer(t.Context(), []window.Question{{Counter: "c", Span: window.Between(began, began+1000)}})
		if err != nil {
			return window.Answer{}, err
		}
		return a.Answers[0], nil
	}
	stack.Eventually(t, "a complete answer before the loss", func() (bool, string) {
		a, err := ask() // until Redis's clock is known to be past the beginning, the range is empty
		return err == nil && a.Complete, fmt.Sprintf("%+v, %v", a, err)
	})
	client := r.redis.Client()
	var keys []string
	for _, key := range stack.Scan(t, client, "test:*:h:*:c") {
		keys = append(keys, key)
		require.NoError(t, client.Rename(t.Context(), key, "kept:"+key).Err())
		require.NoError(t, client.Set(t.Context(), key, "not ours", time.Hour).Err())
	}
	r.publish(2)
	stack.Eventually(t, "the failure to be counted", func() (bool, string) { return w.metric("failed_commits_total") > 0, "" })
	r.logs.await(t, keys[0][:len("test:{0}:h:")], "hincrby", "WRONGTYPE", "complete: false")
	for _, key := range keys {
		require.NoError(t, client.Rename(t.Context(), "kept:"+key, key).Err())
	}
	stack.Eventually(t, "an answer that is not called complete", func() (bool, string) {
		a, err := ask()
		return err == nil && a.Upper <= 3 && !a.Complete, fmt.Sprintf("%+v, %v", a, err)
	})
}

// A cursor that something else has written to holds its stream up, and nothing calls
// that an outage. Put right, it goes on.
func TestAForeignCursorIsNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.counting(3)
	client := r.redis.Client()
	shard := window.Layout{Shards: 4}.ShardOf(window.HashCounter([]byte("c")))
	key := fmt.Sprintf("test:{%d}:cursor:HITS", shard)
	// In one step: without a cursor in between, it would be a loss of Redis.
	require.NoError(t, client.Eval(t.Context(), `redis.call("rename", KEYS[1], KEYS[2]); redis.call("set", KEYS[1], "not ours"); return 1`, []string{key, "kept"}).Err())
	r.publish(2)
	w.awaitReadiness("HITS", key, "WRONGTYPE", "move or delete that key")
	require.Zero(t, r.logs.count("Redis lost"), "it is called an outage of Redis")
	require.NoError(t, client.Rename(t.Context(), "kept", key).Err())
	w.awaitReadiness("ready")
	r.settled(5)
}

// Without the stream of rejects one bad hit would hold all others up.
func TestTheStreamOfRejectsIsMadeAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.counting(1)
	require.NoError(t, r.js.DeleteStream(t.Context(), rejects.Stream))
	require.NoError(t, errOf(r.js.Publish(t.Context(), "hits.c", []byte(`{"n":0}`))))
	r.publish(1)
	r.settled(2)
	if got := rejectsStored(t, r.js); got != 1 {
		t.Errorf("%d rejects stored, want 1", got)
	}
	r.logs.await(t, "bad_count", `"sequence":2`, "a hit is rejected")
	w.awaitReadiness("ready")
}

// While rejects cannot be stored nothing is committed: the worker is not ready,
// says why, and its lag is what is not committed.
func TestACommitThatWaitsForRejectsIsTold(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.counting(1)
	full, err := r.js.Stream(t.Context(), rejects.Stream)
	require.NoError(t, err)
	config := full.CachedInfo().Config
	config.Sealed = true // takes nothing more
	require.NoError(t, errOf(r.js.UpdateStream(t.Context(), config)))
	require.NoError(t, errOf(r.js.Publish(t.Context(), "hits.c", []byte(`{"n":0}`))))
	r.publish(20)
	w.awaitReadiness("stream HITS", "commit has waited", rejects.Stream)
	stack.Eventually(t, "lag", func() (bool, string) {
		messages, seconds, uncommitted := w.metric("lag_messages"), w.metric("lag_seconds"), w.metric("uncommitted_messages")
		return messages == 21 && seconds >= 1 && uncommitted == 21, fmt.Sprint(messages, seconds, uncommitted)
	})
	require.NoError(t, r.js.DeleteStream(t.Context(), rejects.Stream))
	r.settled(21)
	w.awaitReadiness("ready")
	stack.Eventually(t, "no lag", func() (bool, string) {
		return w.metric("lag_messages") == 0 && w.metric("lag_seconds") == 0 && w.metric("uncommitted_messages") == 0, ""
	})
}
