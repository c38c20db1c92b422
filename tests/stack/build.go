package stack

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

const natsServerPackage = "github.com/nats-io/nats-server/v2"

// builds are the binaries of this test process, in a directory of their own.
var builds struct {
	sync.Mutex
	dir  string
	made map[string]func() (string, error)
}

// Main runs the tests of a package, removes the binaries they had built and exits.
//
//	func TestMain(m *testing.M) { stack.Main(m) }
func Main(m *testing.M) {
	code := m.Run()
	builds.Lock()
	if builds.dir != "" {
		_ = os.RemoveAll(builds.dir)
	}
	os.Exit(code)
}

// Build is the path of the program cmd/<name>, built at most once per test
// process, with the race detector where the tests have it. TALLYROLL_BIN names
// a directory of ready binaries to use instead.
func Build(t testing.TB, name string) string {
	t.Helper()
	if dir := os.Getenv("TALLYROLL_BIN"); dir != "" {
		path, err := filepath.Abs(filepath.Join(dir, name))
		if err == nil {
			_, err = exec.LookPath(path)
		}
		if err != nil {
			t.Fatalf("TALLYROLL_BIN=%q has no program %s: %v", dir, name, err)
		}
		return path
	}
	var flags []string
	if raceEnabled {
		flags = append(flags, "-race")
	}
	return build(t, name, "tallyroll/cmd/"+name, flags...)
}

// NATSServer is the path of nats-server, built at most once per test process
// from the module's own dependency: the release that is tested is the one in go.mod.
func NATSServer(t testing.TB) string {
	t.Helper()
	return build(t, "nats-server", natsServerPackage)
}

func build(t testing.TB, name, pkg string, flags ...string) string {
	t.Helper()
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
			args := append(append([]string{"build"}, flags...), "-o", path, pkg)
			if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
				return "", fmt.Errorf("build %s: %w\n%s", pkg, err, out)
			}
			return path, nil
		})
		builds.made[name] = once
	}
	builds.Unlock() // different programs build at the same time
	path, err := once()
	if err != nil {
		t.Fatal(err)
	}
	return path
}
