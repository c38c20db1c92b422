package stack

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

const natsServerPackage = "github.com/nats-io/nats-server/v2"

// builds are the binaries of this test process, in a directory of their own.
var builds struct {
	sync.Mutex
	dir  string
	made map[string]func() (string, error)
}

// Main runs the tests of a package, calls what is to follow them, stops the servers that they shared, removes
// the binaries that they built, and exits.
//
//	func TestMain(m *testing.M) { stack.Main(m) }
func Main(m *testing.M, after ...func()) {
	code := m.Run()
	for _, f := range after {
		f()
	}
	stopShared()
	builds.Lock()
	if builds.dir != "" {
		_ = os.RemoveAll(builds.dir)
	}
	os.Exit(code)
}

// Programs are those that users run.
var Programs = []string{"ingest", "query", "collect", "promql", "rls", "watch", "publish", "redrive", "audit"}

// Build is the path of the program cmd/<name>, built at most once per test
// process. TALLYROLL_BIN names a directory of ready binaries to use instead, as `make test` does.
func Build(t testing.TB, name string) string {
	t.Helper()
	_ = os.Getenv("TALLYROLL_RUN") // other in each `make test`: go's test cache does not know the programs
	if dir := os.Getenv("TALLYROLL_BIN"); dir != "" {
		path, err := ready(dir, name)
		require.NoErrorf(t, err, "TALLYROLL_BIN=%q has no program %s", dir, name)
		return path
	}
	return build(t, name, "tallyroll/cmd/"+name)
}

// BuildExample is the path of the example in a folder of examples, built at most once per test process.
func BuildExample(t testing.TB, folder string) string {
	t.Helper()
	return build(t, strings.ReplaceAll(folder, "/", "-"), "tallyroll/examples/"+folder)
}

// NATSServer is the path of nats-server, built at most once per test process
// from the module's own dependency: the release that is tested is the one in go.mod.
// The one that TALLYROLL_NATS_SERVER names is used instead, or one in the directory TALLYROLL_BIN.
func NATSServer(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("TALLYROLL_NATS_SERVER"); path != "" {
		return path
	}
	if dir := os.Getenv("TALLYROLL_BIN"); dir != "" {
		if path, err := ready(dir, "nats-server"); err == nil {
			return path
		}
	}
	return build(t, "nats-server", natsServerPackage)
}

// ready is the path of a program in a directory.
func ready(dir, name string) (string, error) {
	path, err := filepath.Abs(filepath.Join(dir, name))
	if err != nil {
		return "", err
	}
	return exec.LookPath(path)
}

func build(t testing.TB, name, pkg string) string {
	t.Helper()
	needsServers(t)
	builds.Lock()
	if builds.dir == "" {
		dir, err := os.MkdirTemp("", "tallyroll-bin-")
		if err != nil {
			builds.Unlock()
			t.Fatalf("directory for the binaries: %v", err)
		}
		builds.dir, builds.made = dir, map[string]func() (string, error){}
	}
	once, ok := builds.made[name]
	if !ok {
		path := filepath.Join(builds.dir, name)
		once = sync.OnceValues(func() (string, error) {
			dir, err := moduleOf(name)
			if err != nil {
				return "", err
			}
			cmd := exec.Command("go", "build", "-o", path, pkg)
			cmd.Dir = dir
			if out, err := cmd.CombinedOutput(); err != nil {
				return "", fmt.Errorf("build %s: %w\n%s", pkg, err, out)
			}
			return path, nil
		})
		builds.made[name] = once
	}
	builds.Unlock() // different programs build at the same time
	path, err := once()
	require.NoError(t, err)
	return path
}

// moduleOf is the directory of the module that a program belongs to. The tests of one
// module may run programs of the other.
func moduleOf(program string) (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "tallyroll").Output()
	if err != nil {
		return "", fmt.Errorf("find the module of %s: %w", program, err)
	}
	dir := strings.TrimSpace(string(out))
	if program == "promql" || program == "rls" {
		dir = filepath.Join(dir, "cmd", program)
	}
	return dir, nil
}

// Command is a run of the program cmd/<name> that the test starts and waits for
// itself; env are settings, KEY=value.
func Command(ctx context.Context, t testing.TB, name string, args, env []string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(ctx, Build(t, name), args...)
	cmd.Env = append(cleanEnv(), env...)
	return cmd
}
