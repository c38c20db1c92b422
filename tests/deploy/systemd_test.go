package deploy_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// services are the programs that systemd runs.
var services = []string{"collect", "ingest", "promql", "query", "rls", "watch"}

// exposure is the most that systemd may find in a unit: 10 is a service with all rights.
const exposure = "15" // tenths

// systemd accepts the unit of each program, finds little that it leaves open, and a program to start.
func TestUnits(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("NOT CHECKED: the unit in deploy/systemd, because there is no systemd-analyze on the PATH")
	}
	dir := t.TempDir()
	for _, name := range services {
		file := "tallyroll@" + name + ".service"
		require.FileExists(t, filepath.Join(root(t), "deploy/systemd", name+".env"))
		// It looks for the program where the unit says that it is.
		text := strings.ReplaceAll(read(t, filepath.Join(root(t), "deploy/systemd/tallyroll@.service")), "/usr/lib/tallyroll/", filepath.Dir(stack.Build(t, name))+"/")
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644))
		if out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", filepath.Join(dir, file)).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("systemd-analyze verify %s: %v\n%s", file, err, out)
		}
		if out, err := exec.CommandContext(t.Context(), "systemd-analyze", "security", "--offline=true", "--threshold="+exposure, filepath.Join(dir, file)).CombinedOutput(); err != nil {
			t.Errorf("systemd-analyze security %s: %v\n%s", file, err, out)
		}
	}
}

// manager is what the programs see of systemd.
type manager struct {
	t    *testing.T
	path string
	mu   sync.Mutex
	said []string // the datagrams
}

func newManager(t *testing.T) *manager {
	t.Helper()
	dir, err := os.MkdirTemp("", "notify") // that of the test may be too long for a socket
	require.NoError(t, err)
	m := &manager{t: t, path: filepath.Join(dir, "socket")}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.path, Net: "unixgram"})
	require.NoError(t, err)
	read := make(chan struct{})
	go func() {
		defer close(read)
		buffer := make([]byte, 4<<10)
		for {
			n, err := conn.Read(buffer)
			if err != nil { // it is closed
				return
			}
			m.mu.Lock()
			m.said = append(m.said, string(buffer[:n]))
			m.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		_ = conn.Close()
		<-read
		_ = os.RemoveAll(dir)
	})
	return m
}

// states returns what the program has sent, except for its lines about why it waits.
func (m *manager) states() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(m.said), func(s string) bool { return strings.HasPrefix(s, "STATUS=") })
}

func (m *manager) await(want ...string) {
	m.t.Helper()
	stack.Eventually(m.t, "word of the program", func() (bool, string) {
		states := m.states()
		return len(states) >= len(want), strings.Join(states, ", ")
	})
	for i, said := range m.states() {
		if i >= len(want) || !regexp.MustCompile("^"+want[i]+"$").MatchString(said) {
			m.t.Fatalf("it said %q, want %q", m.states(), want)
		}
	}
}

func (m *manager) awaitStatus(part string) {
	m.t.Helper()
	stack.Eventually(m.t, "a status with "+part, func() (bool, string) {
		m.mu.Lock()
		defer m.mu.Unlock()
		all := strings.Join(m.said, "\n")
		return strings.Contains(all, part), all
	})
}

// A program sends READY once /readyz is ready and not before, RELOADING and READY around a reload, and
// STOPPING on SIGTERM.
func TestNotify(t *testing.T) {
	t.Parallel()
	rules := filepath.Join(t.TempDir(), "rules.yml")
	require.NoError(t, os.WriteFile(rules, []byte("- {stream: ORDERS, subject: orders, count: [{key: orders}]}\n"), 0o600))
	// Closed without Redis: with a limit that is open then, rls serves at once.
	limits := filepath.Join(t.TempDir(), "limits.yml")
	require.NoError(t, os.WriteFile(limits, []byte("limits: [{name: login, max: 5, window: 15m, policy: log, fail: closed, envoy: {domain: edge, descriptor: [{key: login}]}}]\n"), 0o600))
	const ready, reloading = "READY=1\nSTATUS=ready", "RELOADING=1\nMONOTONIC_USEC=[1-9][0-9]+"
	for _, program := range services {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			nats, redis, m := stack.NATS(t), stack.Redis(t), newManager(t)
			env := []string{stack.NoWait, "NOTIFY_SOCKET=" + m.path}
			redis.Stop()
			var s *stack.Service
			switch program {
			case "collect": // which has nothing of Redis
				nats.Stop()
				s = stack.Collect(t, nats, env...)
			case "ingest":
				s = stack.Ingest(t, nats, redis, append(env, "INGEST_RULES="+rules)...)
			case "promql":
				s = stack.PromQL(t, redis, env...)
			case "query":
				s = stack.Query(t, redis, env...)
			case "rls":
				s, _ = stack.RLS(t, redis, append(env, "RLS_LIMITS_FILE="+limits)...)
			case "watch": // which is ready without Redis: the states of its rules are unknown
				nats.Stop()
				s = stack.Watch(t, nats, redis, thresholds(t), env...)
			}
			m.awaitStatus("STATUS=")
			s.Signal(syscall.SIGHUP)
			s.WaitForLog("nothing to reload")
			m.await() // a reload does not make it ready
			switch program {
			case "collect":
				nats.Start()
				if _, err := nats.JetStream().CreateStream(t.Context(), jetstream.StreamConfig{Name: "HITS", Subjects: []string{"hits.>"}}); err != nil {
					t.Fatal(err)
				}
			case "watch":
				nats.Start()
			case "ingest":
				redis.Start()
			default:
				redis.Start()
				stack.Ingest(t, nats, redis) // the first worker writes which tiers there are
			}
			m.await(ready)
			s.WaitReady()
			s.Signal(syscall.SIGHUP)
			m.await(ready, reloading, "READY=1")
			require.Equal(t, 0, s.Stop(), "how it ended")
			m.await(ready, reloading, "READY=1", "STOPPING=1")
		})
	}
}

// A worker without rules has nothing to read again: what a manager sends to reload does not end it.
func TestReloadWithoutRules(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	s := stack.Ingest(t, stack.NATS(t), stack.Redis(t), "NOTIFY_SOCKET="+m.path)
	m.await("READY=1\nSTATUS=ready")
	s.Signal(syscall.SIGHUP)
	require.Equal(t, 0, s.Stop(), "how it ended")
}
