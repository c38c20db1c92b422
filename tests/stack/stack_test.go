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

func TestMain(m *testing.M) {
	if os.Getenv("FAKE_PROGRAM") != "" {
		fakeProgram()
		return
	}
	Main(m)
}

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
		if want := fmt.Sprintf("waiting for rain: hung: not after 50ms; last state: sun %d\n", n); said != want {
			t.Errorf("said %q, want %q", said, want)
		}
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
		if code := p.Stop(); code != 3 {
			t.Errorf("exit code %d, want 3", code)
		}
	})
	t.Run("stop reaches a paused process", func(t *testing.T) {
		p := shell(t, `trap 'exit 4' TERM; echo ready; while :; do :; done`)
		p.Start()
		p.Pause()
		if code := p.Stop(); code != 4 {
			t.Errorf("exit code %d, want 4", code)
		}
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
		if code := p.Wait(); code != 5 {
			t.Errorf("exit code %d, want 5", code)
		}
	})
	t.Run("settings of the person who runs the tests do not reach it", func(t *testing.T) {
		t.Setenv("REDIS_URL", "redis://elsewhere")
		p := shell(t, `echo ready "<$REDIS_URL>"`)
		p.ready = nil
		p.Start()
		p.Wait()
		if !strings.Contains(p.Logs(), "<>") {
			t.Errorf("it has %s", p.Logs())
		}
	})
	t.Run("an early end fails the test with its log", func(t *testing.T) {
		said := failing(t, func(t testing.TB) { shell(t, `echo broken; exit 7`).Start() })
		for _, want := range []string{"start shell: it ended with exit code 7 before it was ready: broken", "the end of the log of shell:"} {
			if !strings.Contains(said, want) {
				t.Errorf("said %q, want %q in it", said, want)
			}
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

func TestTail(t *testing.T) {
	for _, c := range []struct {
		text  string
		lines int
		want  string
	}{
		{"", 2, ""},
		{"a\n", 2, "a"},
		{"a\nb\nc\n", 2, "b\nc"},
		{"a\nb\nc", 3, "a\nb\nc"},
	} {
		if got := tail(c.text, c.lines); got != c.want {
			t.Errorf("tail(%q, %d) = %q, want %q", c.text, c.lines, got, c.want)
		}
	}
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
	if code := r.Stop(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if err := c.Ping(ctx).Err(); err == nil {
		t.Error("it answers after Stop")
	}
	r.Start()
	if r.Addr() != addr {
		t.Errorf("it moved from %s to %s", addr, r.Addr())
	}
	if got := fmt.Sprint(Scan(t, c, "kept:*")); got != "[kept:a kept:b]" {
		t.Errorf("after a stop: %s", got)
	}

	// A killed Redis keeps what it had written to its file, synced or not: the
	// kernel has it. What Redis itself still holds goes with it, so wait for the write.
	set("kept:c")
	Eventually(t, "the append-only file", func() (bool, string) {
		info := c.InfoMap(ctx, "persistence").Item("Persistence", "aof_buffer_length")
		return info == "0", info
	})
	r.Kill()
	r.Start()
	if got := fmt.Sprint(Scan(t, c, "kept:*")); got != "[kept:a kept:b kept:c]" {
		t.Errorf("after a kill: %s", got)
	}

	r.Pause()
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if err := c.Ping(short).Err(); err == nil {
		t.Error("it answers while paused")
	}
	r.Resume()
	if err := c.Ping(ctx).Err(); err != nil {
		t.Errorf("after Resume: %v", err)
	}
	if rss := r.RSS(); rss < 1<<20 || rss > 1<<30 {
		t.Errorf("RSS %d bytes", rss)
	}
}

func TestRedisArgs(t *testing.T) {
	r := Redis(t, RedisArgs("--maxmemory-policy", "volatile-lru"))
	got, err := r.Client().ConfigGet(context.Background(), "maxmemory-policy").Result()
	if err != nil || got["maxmemory-policy"] != "volatile-lru" {
		t.Errorf("got %v %v, want volatile-lru", got, err)
	}
}

func TestRedisMissing(t *testing.T) {
	t.Setenv("PATH", "")
	if said := failing(t, func(t testing.TB) { Redis(t) }); !strings.Contains(said, "make test") {
		t.Errorf("said %q, want a way out", said)
	}
}

// broker is what both kinds of NATS server offer.
type broker interface {
	Endpoint
	JetStream() jetstream.JetStream
	Start()
}

func TestNATSKeepsStream(t *testing.T) {
	embedded, process := NATS(t), NATSProcess(t)
	for _, c := range []struct {
		name string
		n    broker
		stop func()
	}{
		{"embedded", embedded, embedded.Stop},
		{"process stopped", process, func() { process.Stop() }},
		{"process killed", process, process.Kill},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			js, url := c.n.JetStream(), c.n.URL()
			s, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}})
			require.NoError(t, err)
			ack, err := js.Publish(ctx, "s.1", []byte("x"))
			require.NoError(t, err)
			c.stop()
			c.n.Start()
			if c.n.URL() != url {
				t.Errorf("it moved from %s to %s", url, c.n.URL())
			}
			// The connection made before comes back to the same address by itself.
			// A request that went out as the server went down is never answered,
			// so each has a limit of its own.
			Eventually(t, "the stream", func() (bool, string) {
				once, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				info, err := s.Info(once)
				return err == nil && info.State.LastSeq == ack.Sequence, fmt.Sprintf("%+v %v", info, err)
			})
		})
	}
}

func TestNATSProcessPauses(t *testing.T) {
	n := NATSProcess(t)
	conn := n.Conn()
	n.Pause()
	if err := conn.FlushTimeout(50 * time.Millisecond); err == nil {
		t.Error("it answers while paused")
	}
	n.Resume()
	if err := conn.FlushTimeout(10 * time.Second); err != nil {
		t.Errorf("after Resume: %v", err)
	}
}

func TestBuild(t *testing.T) {
	t.Run("ready binaries", func(t *testing.T) {
		dir := t.TempDir()
		t.Setenv("TALLYROLL_BIN", dir)
		require.NoError(t, os.WriteFile(dir+"/ingest", []byte("#!/bin/sh\n"), 0o755))
		if got := Build(t, "ingest"); got != dir+"/ingest" {
			t.Errorf("got %s", got)
		}
		if said := failing(t, func(t testing.TB) { Build(t, "query") }); !strings.Contains(said, "has no program query") {
			t.Errorf("said %q", said)
		}
	})
	t.Run("a program that does not build", func(t *testing.T) {
		t.Setenv("TALLYROLL_BIN", "")
		if said := failing(t, func(t testing.TB) { Build(t, "nosuch") }); !strings.Contains(said, "build tallyroll/cmd/nosuch") {
			t.Errorf("said %q", said)
		}
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
