package faults_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
)

func TestRedisKilled(t *testing.T) {
	t.Parallel()
	s := start(t)
	l := startLoad(s, "c", false, 1000)
	n := rounds(4, 50)
	for range n {
		s.progress(l)
		moment(400 * time.Millisecond)
		s.redis.Kill()
		s.redis.Start()
	}
	s.settled(l, n)
}

func TestRedisRestartedFromAnOlderSnapshot(t *testing.T) {
	t.Parallel()
	s := start(t)
	l := startLoad(s, "c", false, 1000)
	live := filepath.Join(s.redis.Dir(), "appendonlydir")
	n := rounds(2, 15)
	for range n {
		s.progress(l)
		copied := filepath.Join(t.TempDir(), "copy")
		if err := os.CopyFS(copied, os.DirFS(live)); err != nil {
			t.Fatal(err)
		}
		s.progress(l) // what is counted now is not in the copy
		moment(2 * time.Second)
		before := s.counted(l)
		s.redis.Stop()
		if err := os.RemoveAll(live); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(copied, live); err != nil {
			t.Fatal(err)
		}
		s.redis.Start()
		t.Logf("went back from %d hits", before)
	}
	s.settled(l, n)
}

func TestFlushAll(t *testing.T) {
	t.Parallel()
	s := start(t)
	l := startLoad(s, "c", false, 1000)
	n := rounds(5, 100)
	for i := range n {
		if i%2 == 0 { // else while it still replays
			s.progress(l)
		}
		moment(500 * time.Millisecond)
		s.flushAll()
	}
	s.settled(l, n)
}

func (s *system) flushAll() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second)
	defer cancel()
	if err := s.redis.Client().FlushAll(ctx).Err(); err != nil {
		s.t.Fatalf("FLUSHALL: %v", err)
	}
}

// Redis is emptied between a worker's entry of its stream in the list and its
// first look at the cursors: readers must find the stream all the same.
func TestFlushAllWhileAStreamIsTaken(t *testing.T) {
	t.Parallel()
	s := servers(t)
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
	s.worker(p)
	l := startLoad(s, "c", false, 500)
	s.progress(l)
	if !done.Load() {
		t.Fatal("Redis was not emptied: the worker takes a stream in another way now")
	}
	s.settled(l, 1)
}

func TestConnectionsKilled(t *testing.T) {
	t.Parallel()
	s := start(t)
	l := startLoad(s, "c", false, 1000)
	s.progress(l)
	n := s.killConnections(time.Duration(rounds(3, 30)) * time.Second)
	s.settled(l, n)
}

// killConnections cuts every client of Redis but the test's own, every few milliseconds, and says how many that were.
func (s *system) killConnections(long time.Duration) (killed int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), long)
	defer cancel()
	for ctx.Err() == nil {
		n, err := s.redis.Client().ClientKillByFilter(s.t.Context(), "TYPE", "normal", "SKIPME", "yes").Result()
		if err != nil {
			s.t.Fatalf("CLIENT KILL: %v", err)
		}
		killed += int(n)
		moment(10 * time.Millisecond)
	}
	return killed
}

func TestBadNetworkToRedis(t *testing.T) {
	t.Parallel()
	s := servers(t)
	p := startProxy(t, s.redis.Addr(), nil)
	s.worker(p)
	l := startLoad(s, "c", false, 1000)
	s.progress(l)
	s.spoil(p, time.Duration(rounds(4, 60))*time.Second)
	s.settled(l, int(p.faults.Load()))
}

// spoil makes trouble for a time.
func (s *system) spoil(p *proxy, long time.Duration) {
	p.trouble.Store(true)
	time.Sleep(long)
	p.trouble.Store(false)
}
