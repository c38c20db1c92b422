package faults_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"tallyroll/tests/stack"
)

// accessLog is a web server's log that is written all the time and rotated now and then.
type accessLog struct {
	t     *testing.T
	path  string
	load  *load // knows what the log holds
	lines int
	stop  chan struct{}
	done  chan struct{}

	turn   chan string // how to rotate
	turned chan struct{}
}

func startAccessLog(s *system, l *load) *accessLog {
	a := &accessLog{
		t: s.t, path: filepath.Join(s.t.TempDir(), "access.log"), load: l,
		stop: make(chan struct{}), done: make(chan struct{}), turn: make(chan string), turned: make(chan struct{}),
	}
	go a.run(a.open())
	return a
}

// place is the state of the publish that follows it.
func (a *accessLog) place() string { return filepath.Join(filepath.Dir(a.path), "place") }

func (a *accessLog) open() *os.File {
	f, err := os.OpenFile(a.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		a.t.Error(err)
	}
	return f
}

// run writes some thousand lines a second, each in two halves.
func (a *accessLog) run(f *os.File) {
	defer close(a.done)
	defer func() { f.Close() }()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-a.stop:
			return
		case how := <-a.turn:
			f = a.rotate(f, how)
			a.turned <- struct{}{}
		case <-ticker.C:
			for range rand.N(30) {
				a.write(f)
			}
		}
	}
}

func (a *accessLog) write(f *os.File) {
	name := a.load.counter(rand.N(a.load.size))
	a.lines++
	line := fmt.Sprintf("192.0.2.1 - - [%s] \"GET %s?request=%d HTTP/1.1\" 200 5 \"-\" \"agent\"\n", time.Now().Format("02/Jan/2006:15:04:05 -0700"), name, a.lines)
	half := rand.N(len(line))
	for _, part := range []string{line[:half], line[half:]} {
		if _, err := f.WriteString(part); err != nil {
			a.t.Error(err)
		}
	}
	a.load.mu.Lock()
	a.load.truth[name]++
	a.load.mu.Unlock()
}

// rotate does what logrotate does, and keeps all files.
func (a *accessLog) rotate(f *os.File, how string) *os.File {
	must := func(err error) {
		if err != nil {
			a.t.Error(err)
		}
	}
	rotated, err := filepath.Glob(a.path + ".*")
	must(err)
	for i := len(rotated); i > 0; i-- {
		must(os.Rename(fmt.Sprintf("%s.%d", a.path, i), fmt.Sprintf("%s.%d", a.path, i+1)))
	}
	if how == "copytruncate" {
		text, err := os.ReadFile(a.path)
		must(err)
		must(os.WriteFile(a.path+".1", text, 0o600))
		must(f.Truncate(0))
		return f
	}
	must(os.Rename(a.path, a.path+".1"))
	for range rand.N(50) { // until it is told to open the log again
		a.write(f)
	}
	must(f.Close())
	return a.open()
}

func (a *accessLog) rotateNow(how string) {
	a.turn <- how
	<-a.turned
}

func (a *accessLog) end() {
	close(a.stop)
	<-a.done
}

// follow starts a publish that follows the log.
func (a *accessLog) follow(s *system) (*exec.Cmd, *bytes.Buffer) {
	s.t.Helper()
	var out bytes.Buffer
	ctx, cancel := context.WithCancel(context.Background())
	s.t.Cleanup(cancel)
	cmd := stack.Command(ctx, s.t, "publish", []string{"--follow", a.path, "--state", a.place(), "--batch", "50"},
		[]string{"NATS_URL=" + s.nats.URL()})
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if s.t.Failed() && cmd.ProcessState == nil {
			cancel()
			_ = cmd.Wait()
			place, err := os.ReadFile(a.place())
			s.t.Logf("publish, which follows the log, said: %s\nits state: %s %v", &out, place, err)
		}
	})
	return cmd, &out
}

// A publish that follows a log is killed again and again, while the log is rotated and NATS is killed. The stream
// forgets ids at once. Every line counts once.
func TestFollowKilled(t *testing.T) {
	t.Parallel()
	s := start(t, stack.NoWait)
	stream, err := s.js.Stream(t.Context(), "HITS")
	if err != nil {
		t.Fatal(err)
	}
	config := stream.CachedInfo().Config
	config.Duplicates = 100 * time.Millisecond
	if _, err := s.js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	l := newLoad(s, "/page", true)
	a := startAccessLog(s, l)
	faults := rounds(8, 100)
	for i := range faults {
		cmd, _ := a.follow(s)
		switch i % 8 {
		case 0: // what is rotated before the first one opens the log is not counted
			stack.Eventually(t, "publish to open the log", func() (bool, string) {
				_, err := os.Stat(a.place())
				return err == nil, fmt.Sprint(err)
			})
		case 7: // it comes to the newest file
			s.allCounted(l)
		}
		moment(600 * time.Millisecond)
		switch i % 4 {
		case 1:
			a.rotateNow("rename")
			moment(100 * time.Millisecond)
		case 3:
			s.nats.Kill()
			moment(500 * time.Millisecond)
			s.nats.Start()
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if i%4 == 2 { // while nobody reads
			a.rotateNow([]string{"copytruncate", "rename"}[i/4%2])
			moment(300 * time.Millisecond)
		}
	}
	cmd, out := a.follow(s)
	a.end()
	s.allCounted(l)

	// Another one at the same time is refused.
	second, said := a.follow(s)
	if err := second.Wait(); err == nil || !strings.Contains(said.String(), "another publish follows with it") {
		t.Errorf("a second publish: %v: %s", err, said)
	}
	stop := func() {
		t.Helper()
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
	stop()
	// One after it counts nothing again.
	cmd, out = a.follow(s)
	f := a.open()
	a.write(f)
	f.Close()
	s.allCounted(l)
	stop()
	if !strings.Contains(out.String(), "published 1 hits in 1 messages") {
		t.Errorf("a publish after the last one: %s", out)
	}
	s.settled(l, faults)
}

// allCounted waits until as much has counted as was written when it was called.
func (s *system) allCounted(l *load) {
	s.t.Helper()
	want := l.sum()
	stack.Eventually(s.t, "the whole log to be counted", func() (bool, string) {
		got := s.counted(l)
		return got >= want, fmt.Sprintf("%d of %d", got, want)
	})
}
