package faults_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

func (s *system) flushAll() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second)
	defer cancel()
	require.NoError(s.t, s.redis.Client().FlushAll(ctx).Err(), "FLUSHALL")
}

// Redis is emptied between a worker's entry of its stream in the list and its
// first look at the cursors: readers must find the stream all the same.
func TestFlushAllWhileAStreamIsTaken(t *testing.T) {
	t.Parallel()
	s := startServers(t)
	var listed, done atomic.Bool
	client := s.redis.Client()
	p := startProxy(t, s.redis.Addr(), func(piece []byte) {
		switch {
		case bytes.Contains(piece, []byte(":streams")):
			listed.Store(true)
		case listed.Load() && bytes.Contains(bytes.ToLower(piece), []byte("hmget")) && done.CompareAndSwap(false, true):
			_ = client.FlushAll(context.Background()).Err()
		}
	})
	s.startWorker(p)
	l := startLoad(s, "c", false, 500)
	s.awaitProgress(l)
	if !done.Load() {
		t.Fatal("Redis was not emptied: the worker takes a stream in another way now")
	}
	s.requireExactCounts(l, 1)
}

// killConnections cuts every client of Redis but the test's own, every few milliseconds, and says how many
// that were.
func (s *system) killConnections(long time.Duration) (killed int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), long)
	defer cancel()
	for ctx.Err() == nil {
		n, err := s.redis.Client().ClientKillByFilter(s.t.Context(), "TYPE", "normal", "SKIPME", "yes").Result()
		require.NoError(s.t, err, "CLIENT KILL")
		killed += int(n)
		sleepUpTo(10 * time.Millisecond)
	}
	return killed
}

// spoil makes trouble for a time.
func (s *system) spoil(long time.Duration) {
	s.network.trouble.Store(true)
	time.Sleep(long)
	s.network.trouble.Store(false)
}

// Redis is killed in the middle of writing a transaction to its append-only file, started, and killed once
// more.
func TestCountsAreExactAfterATornAppendOnlyFile(t *testing.T) {
	t.Parallel()
	torn := rounds(1, 1, 5)
	for _, mayAsk := range []bool{true, false} {
		t.Run(fmt.Sprintf("the worker may ask for a rewriting: %v", mayAsk), func(t *testing.T) {
			t.Parallel()
			rights := []string{"--user", "counter", "on", "nopass", "~*", "&*", "+@all"}
			if !mayAsk {
				rights = append(rights, "-bgrewriteaof")
			}
			s := &system{t: t, redis: stack.Redis(t, stack.RedisArgs(rights...)), nats: stack.NATSProcess(t)}
			s.broker = s.nats
			s.startQuery(s.redis, 1)
			s.createStream("HITS", "hits.>")
			worker := s.startWorker(endpoint("redis://counter:any@" + s.redis.Addr() + "/0"))
			l := newLoad(s, "c", false)
			send := func(id string, n int64) {
				l.publish(t.Context(), message{subject: l.subject("c0"), id: id, body: fmt.Appendf(nil, `{"n":%d}`, n), hits: map[string]int64{"c0": n}})
			}
			send("first", 3)
			s.countedUpTo(l, time.Now())
			for i := range torn {
				send(fmt.Sprintf("torn%d", i), 10)
				s.countedUpTo(l, time.Now())
				worker.Pause()
				s.redis.Kill()
				tear(t, s.redis)
				s.redis.Start()
				worker.Resume()
				s.countedUpTo(l, time.Now())
				send(fmt.Sprintf("next%d", i), 100)
				s.countedUpTo(l, time.Now())
				worker.Pause()
				s.redis.Kill()
				s.redis.Start()
				worker.Resume()
				s.countedUpTo(l, time.Now())
			}
			answer := s.mustAsk([]string{"c0"})
			if mayAsk {
				s.compare(l, "with a file that was rewritten")
				return
			}
			got, want := answer.Totals[0], l.published()["c0"]
			if s.redis.IsValkey() && got.Total == want { // one that cuts what is torn off at its start (valkey-io/valkey#4342)
				require.Contains(t, s.redis.Logs(), "Revert incomplete MULTI/EXEC")
				return
			}
			require.Greater(t, got.Total, want, "counted: a torn transaction should have been run")
			// The worker sees it when it moves the cursor.
			stack.Eventually(t, "the log to tell of the torn file", func() (bool, string) {
				logs := worker.Logs()
				return strings.Contains(logs, "torn append-only file") && strings.Contains(logs, "cannot be asked to rewrite"), ""
			})
			require.Positive(t, s.metric(worker, `tallyroll_ingest_incomplete_marks_total{reason="torn_file",stream="HITS"}`), "incomplete marks")
		})
	}
}

// tear cuts the append-only file behind the last change of cells, inside the next command.
func tear(t *testing.T, server *stack.RedisServer) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(server.Dir(), "appendonlydir", "*.incr.aof"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	slices.Sort(files)
	last := files[len(files)-1]
	text, err := os.ReadFile(last)
	require.NoError(t, err)
	cell := max(bytes.LastIndex(text, []byte("}:h:")), bytes.LastIndex(text, []byte("}:s:")))
	next := bytes.Index(text[cell:], []byte("\r\n*"))
	if cell < 0 || next < 0 {
		t.Fatalf("%s has no change of cells", last)
	}
	require.NoError(t, os.Truncate(last, int64(cell+next+6)))
}

// endpoint is a server that is reached at a URL.
type endpoint string

func (e endpoint) URL() string { return string(e) }
