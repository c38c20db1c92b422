package worker

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/consume"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/rejects"
	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// A stream is deleted while hits of it are in a worker's memory, and Redis takes
// none until the worker has given them up. By then the fleet has let go of the stream.
func TestHitsLostWithADeletedStreamMakeAnswersIncomplete(t *testing.T) {
	t.Parallel()
	r := newRigOn(t, stack.SharedNATS(t), stack.Redis(t))
	w := r.startCounting(10)
	began := time.Now().UnixMilli()
	since := func() (window.Answers, error) {
		return r.reader.Answer(t.Context(), []window.Question{{Counter: "c", Span: window.Between(began, window.Now)}})
	}
	awaitComplete := func(want bool) {
		t.Helper()
		stack.Eventually(t, fmt.Sprint("complete: ", want), func() (bool, string) {
			got, err := since()
			return err == nil && got.Answers[0].Complete == want, fmt.Sprintf("%+v %v", got, err)
		})
	}
	awaitComplete(true)
	maxMemory := func(bytes string) {
		t.Helper()
		require.NoError(t, r.redis.Client().ConfigSet(t.Context(), "maxmemory", bytes).Err())
	}
	maxMemory("1")
	r.publish(20)
	stack.Eventually(t, "a commit to be refused", func() (bool, string) {
		n := w.metric("commit_retries_total")
		return n > 0, fmt.Sprint(n)
	})
	deleted := time.Now().UnixMilli()
	require.NoError(t, r.js.DeleteStream(t.Context(), "HITS"))
	r.logs.await(t, "the stream is gone", `"hits_lost":true`)
	maxMemory("0")
	awaitComplete(false)
	r.awaitCursors("incomplete", func(c window.Cursor) bool { return c.IncompleteBefore >= deleted })
	if got, err := r.answer(); err != nil || got.Answers[0].Total != 10 {
		t.Errorf("%+v %v, want the 10 hits that had been counted before", got, err)
	}
}

// A stream with another retention than limits deletes what was delivered and not committed. If there is no
// other stream, the worker refuses to start; else this one stands still, and the one that is counted goes on.
func TestStreamThatCannotBeCountedIsRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		config jetstream.StreamConfig
		err    error
		why    string
	}{
		{jetstream.StreamConfig{Retention: jetstream.InterestPolicy}, consume.ErrRetention, ""},
		{jetstream.StreamConfig{Retention: jetstream.WorkQueuePolicy}, consume.ErrRetention, "its retention is not limits"},
	} {
		r := newRig(t)
		c.config.Name, c.config.Subjects = "HITS", []string{"hits.>"}
		require.NoError(t, errOf(r.js.CreateStream(t.Context(), c.config)))
		settings := parseSettings(t, "NATS_URL="+r.nats.URL(), "REDIS_URL="+r.redis.URL(), "INGEST_ADDR=127.0.0.1:0")
		err := Run(t.Context(), settings, zerolog.Nop(), nil, nil)
		var usage setting.UsageError
		if !errors.As(err, &usage) || !errors.Is(err, c.err) || !strings.Contains(err.Error(), "stream HITS") {
			t.Errorf("%+v: the worker ended with %v", c, err)
		}
		if c.why == "" {
			continue
		}
		r = newRig(t)
		w := r.startCounting(3)
		c.config.Name, c.config.Subjects = "HITS_OTHER", []string{"other.>"}
		require.NoError(t, errOf(r.js.CreateStream(t.Context(), c.config)))
		w.awaitReadiness("HITS_OTHER", c.why)
		require.NoError(t, r.js.DeleteStream(t.Context(), "HITS_OTHER"))
		r.publish(2)
		r.awaitTotal(5)
	}
}

// The worker reports a loss if a transaction could not add hits because something else has written to their
// key: the answer is not complete once the key can be read again.
func TestHitsLostToAForeignKeyMakeAnswersIncomplete(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.startCounting(3)
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
	for _, key := range stack.Scan(t, client, "test:*:[hs]:*:c") {
		keys = append(keys, key)
		require.NoError(t, client.Rename(t.Context(), key, "kept:"+key).Err())
		require.NoError(t, client.Set(t.Context(), key, "not ours", time.Hour).Err())
	}
	r.publish(2)
	stack.Eventually(t, "the failure to be counted", func() (bool, string) { return w.metric("failed_commits_total") > 0, "" })
	r.logs.await(t, keys[0][:len("test:{0}:s:")], "not a sparse log", "complete: false")
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
func TestForeignCursorHoldsUpItsStreamAndIsNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.startCounting(3)
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
	r.awaitTotal(5)
}

// Without the stream of rejects one bad hit would hold all others up.
func TestDeletedStreamOfRejectsIsCreatedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.startCounting(1)
	require.NoError(t, r.js.DeleteStream(t.Context(), rejects.Stream))
	require.NoError(t, errOf(r.js.Publish(t.Context(), "hits.c", []byte(`{"n":0}`))))
	r.publish(1)
	r.awaitTotal(2)
	require.EqualValues(t, 1, r.countRejects())
	r.logs.await(t, "bad_count", `"sequence":2`, "a hit is rejected")
	w.awaitReadiness("ready")
}

// While rejects cannot be stored nothing is committed: the worker is not ready,
// says why, and its lag is what is not committed.
func TestWorkerWhoseCommitWaitsForRejectsIsNotReady(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.startCounting(1)
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
	r.awaitTotal(21)
	w.awaitReadiness("ready")
	for _, name := range []string{"lag_messages", "lag_seconds", "uncommitted_messages"} {
		w.awaitMetric(name, 0)
	}
}
