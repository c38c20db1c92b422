// Package deploy_test checks what is in deploy/ as far as a machine can that
// may load no images: the servers accept their configuration files, compose
// accepts its file, and the image's last stage, filled with programs that the
// Dockerfile's own build line made here, runs them as it should.
package deploy_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

func TestMain(m *testing.M) { stack.Main(m) }

// root is the repository's directory.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	require.NoError(t, err)
	return dir
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(b)
}

// tryIn runs a command in a directory and returns its standard output, and its
// standard error within the error.
func tryIn(dir, name string, args ...string) (string, error) {
	return tryWith(nil, dir, name, args...)
}

// tryWith is tryIn with an environment; nil: that of the tests.
func tryWith(env []string, dir, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), stack.Hung)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = env, dir, &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, stderr.String())
	}
	return stdout.String(), nil
}

func command(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	out, err := tryIn(dir, name, args...)
	require.NoError(t, err)
	return out
}
