package clients_test

import (
	"bytes"
	"context"
	"errors"
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
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// postgres starts a server of the machine's PostgreSQL, and returns the environment in which psql finds it.
// Debian keeps the programs of each version apart. PostgreSQL refuses to run as root: then it runs as
// postgres.
func postgres(t *testing.T) (env []string) {
	t.Helper()
	versions, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb") // the pattern is good
	if path, err := exec.LookPath("initdb"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			versions = []string{path}
		}
	}
	if len(versions) == 0 {
		t.Skip("SKIPPED: the example in examples/postgres, for want of PostgreSQL")
	}
	bin := filepath.Dir(slices.Max(versions))
	dir, err := os.MkdirTemp("", "postgres-") // that user cannot look into a test's own
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var as []string
	if os.Getuid() == 0 {
		u, err := user.Lookup("postgres")
		if err != nil {
			t.Skipf("SKIPPED: the example in examples/postgres: PostgreSQL does not run as root, and %v", err)
		}
		uid, _ := strconv.Atoi(u.Uid) // numbers on every Unix
		gid, _ := strconv.Atoi(u.Gid)
		require.NoError(t, os.Chown(dir, uid, gid))
		as = []string{"setpriv", "--reuid=" + u.Uid, "--regid=" + u.Gid, "--clear-groups", "--pdeathsig=QUIT"}
	}
	ctx, cancel := context.WithTimeout(t.Context(), exampleTimeout)
	defer cancel()
	initdb := slices.Concat(as, []string{filepath.Join(bin, "initdb"), "-D", dir, "-U", "test", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"})
	cmd := exec.CommandContext(ctx, initdb[0], initdb[1:]...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	server := slices.Concat(as, []string{filepath.Join(bin, "postgres"), "-D", dir, "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=" + dir, "-c", "fsync=off"})
	p := stack.Server(t, server[0], func(port int) (args, env []string) { return append(server[1:], "-p", strconv.Itoa(port)), nil })
	t.Cleanup(func() {
		p.Signal(syscall.SIGQUIT) // it ends at once, and takes its shared memory with it
		p.Wait()
	})
	env = []string{
		"PATH=" + bin + ":" + os.Getenv("PATH"), "PGHOST=127.0.0.1", "PGPORT=" + strconv.Itoa(p.Port()), "PGUSER=test", "PGDATABASE=postgres",
		"PGTZ=UTC",
	}
	stack.Eventually(t, "PostgreSQL", func() (bool, string) {
		out, err := psql(env, "SELECT 1")
		return err == nil, fmt.Sprint(out, err)
	})
	return env
}

func psql(env []string, sql string) (string, error) {
	path, _, _ := strings.Cut(strings.TrimPrefix(env[0], "PATH="), ":")
	cmd := exec.Command(filepath.Join(path, "psql"), "-X", "-v", "ON_ERROR_STOP=1", "-Atqc", sql)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// The example fills a table with what the totals say, as often as it runs.
func TestExportIntoPostgres(t *testing.T) {
	t.Parallel()
	need(t, "curl")
	env := postgres(t)
	nats, redis := stack.SharedNATS(t), stack.SharedRedis(t)
	stack.Ingest(t, nats, redis)
	query := stack.Query(t, redis, "QUERY_TOKENS=secret")
	env = append(env, "QUERY_URL="+query.URL(), "QUERY_TOKEN=secret")

	midnight := time.Now().UTC().Truncate(24 * time.Hour)
	want := map[string]int64{"/cart": 0, `a "quoted", name`: 0, `\.`: 0, "=1+1": 0, "ä ": 0}
	publish := func() {
		var body bytes.Buffer
		for key := range want {
			for i := range 20 {
				n := int64(len(key) + i)
				want[key] += n
				fmt.Fprintf(&body, "{\"key\":%q,\"n\":%d,\"ts\":%d}\n", key, n, midnight.Add(-time.Duration(i)*time.Hour-time.Minute).UnixMilli())
			}
		}
		body.WriteString(`{"key":"now"}`)
		if _, err := nats.JetStream().Publish(t.Context(), "hits.x", body.Bytes()); err != nil {
			t.Fatal(err)
		}
	}
	check := func() {
		t.Helper()
		var printed string
		stack.Eventually(t, "the table to have the hits", func() (bool, string) {
			cmd := example(t, "postgres/export.sh", []string{"from=" + midnight.Add(-24*time.Hour).Format(time.RFC3339) + "&to=" + midnight.Format(time.RFC3339)}, env...)
			out, err := cmd.CombinedOutput()
			printed = string(out)
			var exit *exec.ExitError
			if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 3) { // counting began after the range did
				t.Fatalf("%v\n%s", err, out)
			}
			found, err := psql(env, `SELECT key || '|' || sum(hits) FROM hits GROUP BY key`)
			if err != nil {
				t.Fatal(found)
			}
			lines := strings.Split(found, "\n")
			for key, n := range want {
				if !slices.Contains(lines, fmt.Sprintf("%s|%d", key, n)) {
					return false, found + printed
				}
			}
			return len(lines) == len(want), found + printed
		})
		if !strings.Contains(printed, "100 rows of 15m from "+midnight.Add(-24*time.Hour).Format(time.RFC3339)+" to "+midnight.Format(time.RFC3339)+", complete: false") {
			t.Errorf("it printed %s", printed)
		}
	}
	publish()
	check()
	publish() // hits that come late
	check()
	if out, err := example(t, "postgres/export.sh", []string{"step=7m"}, env...).CombinedOutput(); err == nil || !strings.Contains(string(out), "is not a step of an export") {
		t.Errorf("a bad step: %v\n%s", err, out)
	}
}
