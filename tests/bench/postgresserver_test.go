package bench_test

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// buildOther builds a program of the module in tests/bench/pgcount.
func buildOther(t testing.TB, pkg string, env ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	cmd := exec.Command("go", "build", "-C", "pgcount", "-trimpath", "-o", path, pkg)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
	return path
}

// postgres is a server of the machine's PostgreSQL, with its files in a directory of its own.
type postgres struct {
	*stack.Process
	t       testing.TB
	bin     string
	program string // pgcount, built
}

// postgresSettings are what differs from the server's defaults, which are for machines of long ago: a buffer
// that holds the tables, and checkpoints that are rare and spread.
var postgresSettings = []string{
	"shared_buffers=1GB", "max_wal_size=4GB", "checkpoint_timeout=15min", "checkpoint_completion_target=0.9",
	"wal_compression=on", "wal_buffers=16MB", "work_mem=64MB", "random_page_cost=1.1",
}

// findPostgres is the directory of PostgreSQL's programs. Debian keeps those of each version apart.
func findPostgres() (bin string, found bool) {
	if path, err := exec.LookPath("initdb"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			return filepath.Dir(path), true
		}
	}
	versions, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb") // the pattern is good
	if len(versions) == 0 {
		return "", false
	}
	return filepath.Dir(slices.Max(versions)), true
}

// startPostgres makes a cluster and starts its server: nil if PostgreSQL is missing. It refuses to run as
// root: then both run as postgres.
func startPostgres(t testing.TB) *postgres {
	t.Helper()
	bin, found := findPostgres()
	if !found {
		return nil
	}
	dir, err := os.MkdirTemp("", "postgres-") // that user cannot look into a test's own
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var as []string
	if os.Getuid() == 0 {
		as = asPostgres(t, dir)
	}
	initdb := append(as, filepath.Join(bin, "initdb"), "-D", dir, "-U", "bench",
		"--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync")
	cmd := exec.Command(initdb[0], initdb[1:]...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	p := &postgres{t: t, bin: bin, program: buildOther(t, ".", "CGO_ENABLED=0")}
	server := slices.Concat(as, []string{filepath.Join(bin, "postgres"), "-D", dir})
	for _, setting := range append(postgresSettings, "listen_addresses=127.0.0.1", "unix_socket_directories="+dir) {
		server = append(server, "-c", setting)
	}
	p.Process = stack.Server(t, server[0], func(port int) (args, env []string) {
		return append(server[1:], "-p", strconv.Itoa(port)), nil
	})
	t.Cleanup(func() {
		p.Signal(syscall.SIGQUIT) // it ends at once, and takes its shared memory with it
		p.Wait()
	})
	stack.Eventually(t, "PostgreSQL", func() (bool, string) {
		out, err := p.psql("postgres", "SELECT 1").CombinedOutput()
		return err == nil, fmt.Sprintf("%s %v", out, err)
	})
	return p
}

// asPostgres gives the directory to the user postgres, and returns the command that runs others as that user.
func asPostgres(t testing.TB, dir string) []string {
	t.Helper()
	u, err := user.Lookup("postgres")
	require.NoError(t, err, "PostgreSQL does not run as root, and")
	uid, _ := strconv.Atoi(u.Uid) // numbers on every Unix
	gid, _ := strconv.Atoi(u.Gid)
	require.NoError(t, os.Chown(dir, uid, gid))
	return []string{"setpriv", "--reuid=" + u.Uid, "--regid=" + u.Gid, "--clear-groups", "--pdeathsig=QUIT"}
}

func (p *postgres) url(database string) string {
	return "postgres://bench@" + p.Addr() + "/" + database
}

func (p *postgres) psql(database, sql string) *exec.Cmd {
	return exec.Command(filepath.Join(p.bin, "psql"), p.url(database), "-v", "ON_ERROR_STOP=1", "-Atqc", sql)
}

// ask runs a command of SQL in a database and returns what it prints.
func (p *postgres) ask(database, sql string) string {
	p.t.Helper()
	out, err := p.psql(database, sql).CombinedOutput()
	if err != nil {
		p.t.Fatalf("%s: %v\n%s", sql, err, out)
	}
	return strings.TrimSpace(string(out))
}

// empty recreates the database, with nothing left to write to disk.
func (p *postgres) empty() {
	p.t.Helper()
	for _, sql := range []string{"DROP DATABASE IF EXISTS bench WITH (FORCE)", "CREATE DATABASE bench", "CHECKPOINT"} {
		p.ask("postgres", sql)
	}
}

// bytes is what the database takes on disk, with its indexes.
func (p *postgres) bytes() int64 {
	p.t.Helper()
	n, err := strconv.ParseInt(p.ask("bench", "SELECT pg_database_size('bench')"), 10, 64)
	require.NoError(p.t, err)
	return n
}

// seconds is the processor time that the server and its processes have used, those that have ended too.
func (p *postgres) seconds() float64 {
	p.t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(p.t, err)
	sum, parent := 0.0, strconv.Itoa(p.PID())
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended meanwhile
		}
		fields := procFields(b)
		switch {
		case filepath.Base(filepath.Dir(path)) == parent:
			sum += ticks(p.t, fields[11:15]) // with utime and stime of the children that have ended
		case fields[1] == parent:
			sum += ticks(p.t, fields[11:13])
		}
	}
	return sum
}
