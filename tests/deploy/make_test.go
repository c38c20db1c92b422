package deploy_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// bare is a copy of what make needs on a machine without redis-server. A call of a package manager or of sudo
// there adds a line to the file called.
type bare struct {
	t           *testing.T
	dir, called string
	env         []string
}

func newBare(t *testing.T) *bare {
	t.Helper()
	b := &bare{t: t, dir: t.TempDir()}
	b.called = filepath.Join(b.dir, "called")
	for _, name := range []string{"Makefile", "go.mod", "go.sum", "tests/install.sh"} {
		b.write(name, read(t, filepath.Join(root(t), name)), 0o644)
	}
	for _, name := range []string{"cmd", "docs", "internal"} {
		require.NoError(t, os.CopyFS(filepath.Join(b.dir, name), os.DirFS(filepath.Join(root(t), name))))
	}
	managers := []string{"sudo", "apt-get", "dnf", "apk", "pacman", "brew"}
	for _, name := range managers {
		// The manager does what it is asked to: it puts a redis-server into its own directory.
		b.write("bin-path/"+name, "#!/bin/sh\necho \"$0 $*\" >>"+b.called+"\necho CALLED $0\nprintf '#!/bin/sh\\n' >"+b.dir+"/bin-path/redis-server\nchmod +x "+b.dir+"/bin-path/redis-server\n", 0o755)
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // a directory of the PATH that is not there
		}
		for _, e := range entries {
			if e.Name() != "redis-server" && e.Name() != "docker" && !slices.Contains(managers, e.Name()) {
				_ = os.Symlink(filepath.Join(dir, e.Name()), filepath.Join(b.dir, "bin-path", e.Name())) // the first of a name counts
			}
		}
	}
	b.env = append(os.Environ(), "PATH="+filepath.Join(b.dir, "bin-path"), "TMPDIR="+t.TempDir())
	return b
}

func (b *bare) write(name, text string, mode os.FileMode) {
	b.t.Helper()
	path := filepath.Join(b.dir, name)
	require.NoError(b.t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(b.t, os.WriteFile(path, []byte(text), mode))
}

func (b *bare) make(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(b.t.Context(), "make", args...)
	cmd.Dir, cmd.Env = b.dir, b.env
	return cmd
}

// The first thing a newcomer does works without redis-server, and installs nothing.
func TestMakeRunInstallsNothing(t *testing.T) {
	t.Parallel()
	b := newBare(t)
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", os.DevNull, "./cmd/dev") // into the cache, however long that takes
	build.Dir, build.Env = b.dir, append(b.env, "CGO_ENABLED=0")
	text, err := build.CombinedOutput()
	require.NoError(t, err, "%s", text)
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	defer log.Close()
	cmd := b.make("run")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // as a shell does: Ctrl-C reaches make and dev
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
		<-ended // interrupted, says make
		if called, err := os.ReadFile(b.called); err == nil {
			t.Errorf("make run has called %s", called)
		}
	})
	stack.Eventually(t, "dev, which is built first", func() (bool, string) {
		out := read(t, log.Name())
		select {
		case err := <-ended:
			close(ended)
			t.Fatalf("make run: %v\n%s", err, out)
		default:
		}
		return strings.Contains(out, "Ctrl-C ends"), out
	})
	out := read(t, log.Name())
	require.Contains(t, out, "embedded stand-in", "which Redis it has")
	query := regexp.MustCompile(`query +(http://\S+)/docs`).FindStringSubmatch(out)
	require.NotNil(t, query, "it names no address: %s", out)
	stack.Eventually(t, "the load to be counted", func() (bool, string) {
		total, status, err := stack.FetchTotal(query[1], "/home", "1m")
		return err == nil && total.Total > 0, fmt.Sprint(total.Total, status, err)
	})
}

// The tests need redis-server: what is installed is said before it is.
func TestMakeTestPrintsWhatItInstalls(t *testing.T) {
	b := newBare(t)
	out, err := b.make("test", "GO=true").CombinedOutput()
	said, done, called := strings.Cut(string(out), "CALLED")
	if err != nil || !called || !strings.Contains(said, "redis-server is missing") || !strings.Contains(said, "apt-get install") || strings.Contains(done, "is missing") {
		t.Errorf("make test: %v\n%s", err, out)
	}
	require.Equal(t, os.Getuid() != 0, strings.Contains(said, "sudo"), "it says whether it needs sudo: %s", said)
}

// What a newcomer needs comes first, and fits a terminal.
func TestMakeHelpBeginsWithRunAndTest(t *testing.T) {
	out := command(t, root(t), "make", "help")
	require.Regexp(t, `(?m)^Every day\n  make run .*\n .* ARGS='--no-load .*\n  make test `, out)
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "  ") { // and not what a make within make says
			require.LessOrEqual(t, len(line), 101, line)
		}
	}
}
