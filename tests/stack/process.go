package stack

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Bounds of a process.
const (
	logTail   = 50 // lines printed when a test fails
	bindTries = 5
)

// Process is a server as a process of the operating system. It is killed when
// the test ends. Its methods may be called from several goroutines, but those
// that can fail the test belong on the test's own.
type Process struct {
	t       testing.TB
	name    string
	path    string
	logFile string

	// command gives the arguments and the environment for a port.
	command func(port int) (args, env []string)
	// ready says whether the server answers; nil where Start must not wait.
	ready func() (bool, string)

	columns int // of the terminal that its standard error is; 0 for a plain file

	mu   sync.Mutex
	port int // 0 before the first start, then the same for good
	run  *run
}

// needsServers skips a test under -short, which `make quick` sets.
func needsServers(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("it starts servers or programs, and -short leaves those out")
	}
}

// run is one life of a process.
type run struct {
	pid  int
	proc *os.Process
	code int           // set before done is closed
	done chan struct{} // closed once the process is gone
}

func newProcess(t testing.TB, name, path string, command func(port int) (args, env []string)) *Process {
	t.Helper()
	needsServers(t)
	p := &Process{t: t, name: name, path: path, command: command}
	p.logFile = filepath.Join(t.TempDir(), name+".log")
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("the end of the log of %s:\n%s", name, tail(p.Logs(), logTail))
		}
	})
	return p
}

// Start starts the process and returns when it is ready. After the first start
// it is on the same port with the same data.
func (p *Process) Start() {
	p.t.Helper()
	require.NoErrorf(p.t, p.start(), "start %s", p.name)
}

func (p *Process) start() error {
	p.t.Helper()
	if r := p.current(); r != nil && !r.gone() {
		return fmt.Errorf("it runs already, as process %d", r.pid)
	}
	if p.Port() != 0 {
		return p.startOnce()
	}
	// Between finding a port free and binding it, another process can take it.
	var err error
	for range bindTries {
		p.setPort(FreePort(p.t))
		if err = p.startOnce(); err == nil {
			return nil
		}
		if !strings.Contains(strings.ToLower(p.Logs()), "address already in use") {
			break
		}
	}
	p.setPort(0)
	return err
}

func (p *Process) startOnce() error {
	r, err := p.spawn()
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.run = r
	p.mu.Unlock()
	if p.ready == nil {
		return nil
	}
	if err := p.awaitReady(r); err != nil {
		p.kill()
		return err
	}
	return nil
}

func (p *Process) awaitReady(r *run) error {
	err := poll(Hung, r.done, p.ready)
	if r.gone() { // whatever answered, it was not this process
		return fmt.Errorf("it ended with exit code %d before it was ready: %s", r.code, tail(p.Logs(), 3))
	}
	return err
}

func (p *Process) spawn() (*run, error) {
	log, err := os.OpenFile(p.logFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	output, written, err := p.output(log)
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	defer output.Close()
	args, env := p.command(p.Port())
	cmd := exec.Command(p.path, args...)
	cmd.Env = append(cleanEnv(), env...)
	cmd.Dir = filepath.Dir(p.logFile)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = dieWithParent()
	r := &run{done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel ends the child with the thread that started it, so this
		// thread stays until the child is gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if err == nil {
			r.pid, r.proc = cmd.Process.Pid, cmd.Process
		}
		started <- err
		if err != nil {
			return
		}
		_ = cmd.Wait() // the exit code suffices
		written()
		r.code = cmd.ProcessState.ExitCode()
		close(r.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return r, nil
}

// output is where the process writes: the log, or a terminal that is copied to
// it. written returns once the log has all that a process which is gone wrote.
func (p *Process) output(log *os.File) (output *os.File, written func(), err error) {
	if p.columns == 0 {
		return log, func() {}, nil
	}
	ours, theirs, err := OpenTerminal(p.columns)
	if err != nil {
		return nil, nil, err
	}
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		_, _ = io.Copy(log, ours) // until nobody has the other end open, which is an error
		_ = ours.Close()
		_ = log.Close()
	}()
	return theirs, func() { <-copied }, nil
}

func (p *Process) current() *run {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.run
}

func (r *run) gone() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// running is the current life, or the test's failure.
func (p *Process) running(to string) *run {
	p.t.Helper()
	r := p.current()
	if r == nil || r.gone() {
		p.t.Fatalf("%s %s: it is not running", to, p.name)
	}
	return r
}

// Running reports whether the process is there, paused or not.
func (p *Process) Running() bool {
	r := p.current()
	return r != nil && !r.gone()
}

// Port is the TCP port on 127.0.0.1.
func (p *Process) Port() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.port
}

func (p *Process) setPort(port int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.port = port
}

// Addr is host:port.
func (p *Process) Addr() string { return address(p.Port()) }

// PID is the process id.
func (p *Process) PID() int {
	p.t.Helper()
	return p.running("process id of").pid
}

// Done is closed when the process that runs now is gone.
func (p *Process) Done() <-chan struct{} {
	p.t.Helper()
	r := p.current()
	if r == nil {
		p.t.Fatalf("%s was never started", p.name)
	}
	return r.done
}

// Wait waits for the process to end by itself and returns its exit code, -1
// where a signal ended it. It fails the test after [Hung].
func (p *Process) Wait() int {
	p.t.Helper()
	select {
	case <-p.Done():
		return p.current().code
	case <-time.After(Hung):
		p.t.Fatalf("%s hung: it still runs after %v", p.name, Hung)
		return -1
	}
}

// Stop asks the process to end (SIGTERM) and returns its exit code, -1 where a
// signal ended it. After [Hung] it fails the test and kills the process.
func (p *Process) Stop() int {
	p.t.Helper()
	r := p.running("stop")
	p.signal(r, syscall.SIGTERM)
	p.signal(r, syscall.SIGCONT) // a paused process would not see the first
	select {
	case <-r.done:
		return r.code
	case <-time.After(Hung):
		p.kill()
		p.t.Errorf("%s hung: it did not end within %v of SIGTERM", p.name, Hung)
		return r.code
	}
}

// Kill ends the process at once (SIGKILL) and returns when it is gone.
func (p *Process) Kill() {
	p.t.Helper()
	p.running("kill")
	p.kill()
}

func (p *Process) kill() {
	if r := p.current(); r != nil {
		p.signal(r, syscall.SIGKILL)
		<-r.done
	}
}

// Signal sends a signal and does not wait for its effect.
func (p *Process) Signal(sig syscall.Signal) {
	p.t.Helper()
	p.signal(p.running("signal"), sig)
}

func (p *Process) signal(r *run, sig syscall.Signal) {
	_ = r.proc.Signal(sig) // its only error is that the process is gone
}

// Pause halts the process (SIGSTOP) and returns when every thread stands still.
// Its connections stay open, its clocks go on.
func (p *Process) Pause() {
	p.t.Helper()
	r := p.running("pause")
	p.signal(r, syscall.SIGSTOP)
	Eventually(p.t, "a halt of "+p.name, func() (bool, string) { return halted(r.pid) })
}

// Resume lets a paused process go on (SIGCONT).
func (p *Process) Resume() {
	p.t.Helper()
	p.Signal(syscall.SIGCONT)
}

// RSS is the memory that the process holds, in bytes.
func (p *Process) RSS() int64 {
	p.t.Helper()
	n, err := residentBytes(p.PID())
	require.NoErrorf(p.t, err, "memory of %s", p.name)
	return n
}

// Logs is all that the process has written, over all its lives.
func (p *Process) Logs() string {
	b, err := os.ReadFile(p.logFile)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// tail is the last lines of a text.
func tail(text string, lines int) string {
	b := bytes.TrimRight([]byte(text), "\n")
	from := len(b)
	for range lines {
		from = bytes.LastIndexByte(b[:from], '\n')
		if from < 0 {
			return string(b)
		}
	}
	return string(b[from+1:])
}
