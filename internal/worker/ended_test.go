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

	"tallyroll/internal/boot"
	"tallyroll/internal/consume"
	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// A stream is deleted while hits of it are in a worker's memory, and Redis takes
// none until the worker has given them up. By then the fleet has let go of the stream.
func TestHitsLostWithADeletedStreamAreAdmitted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.counting(10)
	began := time.Now().UnixMilli()
	since := func() (window.Answers, error) {
		return r.reader.Answer(t.Context(), []window.Question{{Counter: "c", Span: window.Between(began, window.Now)}})
	}
	stack.Eventually(t, "a complete answer", func() (bool, string) {
		got, err := since()
		return err == nil && got.Answers[0].Complete, fmt.Sprintf("%+v %v", got, err)
	})

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

	stack.Eventually(t, "the loss to be admitted", func() (bool, string) {
		got, err := since()
		return err == nil && !got.Answers[0].Complete, fmt.Sprintf("%+v %v", got, err)
	})
	stack.Eventually(t, "every shard to admit it", func() (bool, string) {
		for shard := range testLayout.Shards {
			if c := r.cursor(shard); c.IncompleteBefore < deleted {
				return false, fmt.Sprintf("shard %d: %+v", shard, c)
			}
		}
		return true, ""
	})
	if got, err := r.answer(); err != nil || got.Answers[0].Total != 10 {
		t.Errorf("%+v %v, want the 10 hits that had been counted before", got, err)
	}
}

// A stream with another retention than limits deletes what was delivered and not committed.
func TestOtherRetentionIsRefused(t *testing.T) {
	t.Parallel()
	for _, retention := range []jetstream.RetentionPolicy{jetstream.InterestPolicy, jetstream.WorkQueuePolicy} {
		r := newRig(t)
		config := jetstream.StreamConfig{Name: "HITS", Subjects: []string{"hits.>"}, Retention: retention}
		require.NoError(t, errOf(r.js.CreateStream(t.Context(), config)))
		settings := parse(t, "NATS_URL="+r.nats.URL(), "REDIS_URL="+r.redis.URL(), "INGEST_ADDR=127.0.0.1:0")
		err := Run(t.Context(), settings, zerolog.Nop(), nil, nil)
		var usage boot.UsageError
		if !errors.As(err, &usage) || !errors.Is(err, consume.ErrRetention) || !strings.Contains(err.Error(), "stream HITS") {
			t.Errorf("%v: the worker ended with %v", retention, err)
		}
	}

	standsStill(t, jetstream.StreamConfig{Name: "HITS_WORK", Subjects: []string{"work.>"}, Retention: jetstream.WorkQueuePolicy}, "its retention is not limits")
}

// So is a stream whose messages are increments of counters: what they count is in a header.
func TestStreamOfIncrementsIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	require.NoError(t, errOf(r.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "HITS", Subjects: []string{"hits.>"}, AllowMsgCounter: true, AllowDirect: true})))
	settings := parse(t, "NATS_URL="+r.nats.URL(), "REDIS_URL="+r.redis.URL(), "INGEST_ADDR=127.0.0.1:0")
	err := Run(t.Context(), settings, zerolog.Nop(), nil, nil)
	var usage boot.UsageError
	if !errors.As(err, &usage) || !errors.Is(err, consume.ErrIncrements) || !strings.Contains(err.Error(), "stream HITS") {
		t.Errorf("the worker ended with %v", err)
	}
	standsStill(t, jetstream.StreamConfig{Name: "HITS_INCREMENTS", Subjects: []string{"increments.>"}, AllowMsgCounter: true, AllowDirect: true}, "it has allow_msg_counter")
}

// standsStill adds a stream beside one that is counted: it stands still, and the other one goes on.
func standsStill(t *testing.T, config jetstream.StreamConfig, why string) {
	t.Helper()
	r := newRig(t)
	w := r.counting(3)
	require.NoError(t, errOf(r.js.CreateStream(t.Context(), config)))
	w.awaitReadiness(config.Name, why)
	require.NoError(t, r.js.DeleteStream(t.Context(), config.Name))
	r.publish(2)
	r.settled(5)
}
