package stack

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) { Main(m) }

// fakeTB stands in for a test that is expected to fail.
type fakeTB struct {
	testing.TB
	mu       sync.Mutex
	failed   bool
	said     strings.Builder
	cleanups []func()
}

func (f *fakeTB) Helper()           {}
func (f *fakeTB) Cleanup(fn func()) { f.cleanups = append(f.cleanups, fn) }

func (f *fakeTB) Failed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed
}

func (f *fakeTB) say(fail bool, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failed = f.failed || fail
	f.said.WriteString(text + "\n")
}

func (f *fakeTB) Logf(format string, args ...any)   { f.say(false, fmt.Sprintf(format, args...)) }
func (f *fakeTB) Errorf(format string, args ...any) { f.say(true, fmt.Sprintf(format, args...)) }
func (f *fakeTB) FailNow()                          { f.say(true, ""); runtime.Goexit() }
func (f *fakeTB) Fatal(args ...any)                 { f.say(true, fmt.Sprint(args...)); runtime.Goexit() }
func (f *fakeTB) Fatalf(format string, args ...any) { f.Errorf(format, args...); runtime.Goexit() }

// failing runs fn as a test of its own would be run, cleanups included, and
// returns what the test printed. The real test fails if this one did not.
func failing(t *testing.T, fn func(t testing.TB)) string {
	t.Helper()
	f := &fakeTB{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn(f)
	}()
	<-done
	for i := len(f.cleanups) - 1; i >= 0; i-- {
		f.cleanups[i]()
	}
	if !f.failed {
		t.Fatal("did not fail")
	}
	return f.said.String()
}

// shell is a process that runs a shell script.
func shell(t testing.TB, script string) *Process {
	p := newProcess(t, "shell", "/bin/sh", func(int) (args, env []string) { return []string{"-c", script}, nil })
	p.ready = func() (bool, string) { // "already" is not ready
		return strings.HasPrefix(p.Logs(), "ready") || strings.Contains(p.Logs(), "\nready"), p.Logs()
	}
	return p
}

func TestEventually(t *testing.T) {
	t.Run("returns when the condition holds", func(t *testing.T) {
		n := 0
		Eventually(t, "the third look", func() (bool, string) { n++; return n == 3, "" })
		if n != 3 {
			t.Errorf("asked %d times, want 3", n)
		}
	})
	t.Run("fails with what it waited for and the last state", func(t *testing.T) {
		n := 0
		said := failing(t, func(t testing.TB) {
			eventually(t, 50*time.Millisecond, "rain", func() (bool, string) { n++; return false, fmt.Sprintf("sun %d", n) })
		})
		require.Contains(t, said, "waiting for rain")
		require.Contains(t, said, fmt.Sprintf("hung: not after 50ms; last state: sun %d\n", n))
	})
}

func TestFreePort(t *testing.T) {
	seen := map[int]bool{}
	for range 200 {
		port := FreePort(t)
		if seen[port] {
			t.Fatalf("port %d was given twice", port)
		}
		seen[port] = true
	}
}

func TestProcess(t *testing.T) {
	t.Run("stop returns the exit code", func(t *testing.T) {
		p := shell(t, `trap 'exit 3' TERM; echo ready; while :; do :; done`)
		p.Start()
		require.Equal(t, 3, p.Stop())
	})
	t.Run("stop reaches a paused process", func(t *testing.T) {
		p := shell(t, `trap 'exit 4' TERM; echo ready; while :; do :; done`)
		p.Start()
		p.Pause()
		require.Equal(t, 4, p.Stop())
	})
	t.Run("a paused process stands still and goes on", func(t *testing.T) {
		p := shell(t, `echo ready; while :; do echo tick; done`)
		p.Start()
		p.Pause()
		before := len(p.Logs())
		// It would fill several pages in this time; that nothing happens can only be seen by waiting.
		if poll(50*time.Millisecond, nil, func() (bool, string) { return len(p.Logs()) > before, "" }) == nil {
			t.Error("it went on writing")
		}
		p.Resume()
		Eventually(t, "more ticks", func() (bool, string) { return len(p.Logs()) > before, "none" })
		p.Kill()
	})
	t.Run("wait sees it end", func(t *testing.T) {
		p := shell(t, `echo ready; exit 5`)
		p.ready = nil
		p.Start()
		require.Equal(t, 5, p.Wait())
	})
	t.Run("settings of the person who runs the tests do not reach it", func(t *testing.T) {
		t.Setenv("REDIS_URL", "redis://elsewhere")
		p := shell(t, `echo ready "<$REDIS_URL>"`)
		p.ready = nil
		p.Start()
		p.Wait()
		require.Contains(t, p.Logs(), "<>")
	})
	t.Run("an early end fails the test with its log", func(t *testing.T) {
		said := failing(t, func(t testing.TB) { shell(t, `echo broken; exit 7`).Start() })
		for _, want := range []string{"start shell", "it ended with exit code 7 before it was ready: broken", "the end of the log of shell:"} {
			require.Contains(t, said, want)
		}
	})
	t.Run("a taken port is left for another", func(t *testing.T) {
		flag := t.TempDir() + "/tried"
		p := shell(t, fmt.Sprintf(`if [ -e %[1]s ]; then echo ready; exec sleep 60; fi; : >%[1]s; echo Address already in use; exit 1`, flag))
		p.Start()
		p.Kill()
	})
	t.Run("the end of the test is the end of the process", func(t *testing.T) {
		var pid int
		failing(t, func(t testing.TB) {
			p := shell(t, `echo ready; exec sleep 60`)
			p.Start()
			pid = p.PID()
			t.Fatal("over")
		})
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("process %d: %v, want that there is none", pid, err)
		}
	})
}

func TestRedisKeepsData(t *testing.T) {
	ctx := context.Background()
	r := Redis(t)
	addr := r.Addr()
	c := r.Client()

	set := func(key string) {
		t.Helper()
		require.NoError(t, c.Set(ctx, key, "1", 0).Err())
	}
	set("kept:b")
	set("kept:a")
	require.Equal(t, 0, r.Stop())
	require.Error(t, c.Ping(ctx).Err(), "it answers after Stop")
	r.Start()
	if r.Addr() != addr {
		t.Errorf("it moved from %s to %s", addr, r.Addr())
	}
	require.Equal(t, "[kept:a kept:b]", fmt.Sprint(Scan(t, c, "kept:*")))

	// A killed Redis keeps what it had written to its file, synced or not: the
	// kernel has it. What Redis itself still holds goes with it, so wait for the write.
	set("kept:c")
	Eventually(t, "the append-only file", func() (bool, string) {
		info := c.InfoMap(ctx, "persistence").Item("Persistence", "aof_buffer_length")
		return info == "0", info
	})
	r.Kill()
	r.Start()
	require.Equal(t, "[kept:a kept:b kept:c]", fmt.Sprint(Scan(t, c, "kept:*")))

	r.Pause()
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	require.Error(t, c.Ping(short).Err(), "it answers while paused")
	r.Resume()
	require.NoError(t, c.Ping(ctx).Err())
	if rss := r.RSS(); rss < 1<<20 || rss > 1<<30 {
		t.Errorf("RSS %d bytes", rss)
	}
}

func TestRedisMissing(t *testing.T) {
	t.Setenv("PATH", "")
	require.Contains(t, failing(t, func(t testing.TB) { Redis(t) }), "make test")
}

func TestNATSProcessPauses(t *testing.T) {
	n := NATSProcess(t)
	conn := n.Conn()
	n.Pause()
	require.Error(t, conn.FlushTimeout(50*time.Millisecond), "it answers while paused")
	n.Resume()
	require.NoError(t, conn.FlushTimeout(10*time.Second))
}

func TestBuild(t *testing.T) {
	t.Run("ready binaries", func(t *testing.T) {
		dir := t.TempDir()
		t.Setenv("TALLYROLL_BIN", dir)
		require.NoError(t, os.WriteFile(dir+"/ingest", []byte("#!/bin/sh\n"), 0o755))
		require.Equal(t, dir+"/ingest", Build(t, "ingest"))
		require.Contains(t, failing(t, func(t testing.TB) { Build(t, "query") }), "has no program query")
	})
	t.Run("a program that does not build", func(t *testing.T) {
		t.Setenv("TALLYROLL_BIN", "")
		require.Contains(t, failing(t, func(t testing.TB) { Build(t, "nosuch") }), "build tallyroll/cmd/nosuch")
	})
	t.Run("once", func(t *testing.T) {
		t.Setenv("TALLYROLL_BIN", t.TempDir())
		first := NATSServer(t)
		before, err := os.Stat(first)
		require.NoError(t, err)
		after, err := os.Stat(NATSServer(t))
		if errors.Is(err, fs.ErrNotExist) || !os.SameFile(before, after) || !before.ModTime().Equal(after.ModTime()) {
			t.Error("it was built again")
		}
	})
}

func TestSharedServersKeepTestsApart(t *testing.T) {
	for range 2 {
		t.Run("", func(t *testing.T) {
			db, js := SharedRedis(t), SharedNATS(t).JetStream()
			other := ProgramClient(t, SharedRedis(t).URL())
			require.Zero(t, db.Client().DBSize(t.Context()).Val())
			require.NoError(t, db.Client().Set(t.Context(), "key", 1, 0).Err())
			require.EqualValues(t, 1, ProgramClient(t, db.URL()).DBSize(t.Context()).Val())
			require.Zero(t, other.DBSize(t.Context()).Val())
			_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{">"}, NoAck: true})
			require.NoError(t, err, "of an account that has none")
		})
	}
}
