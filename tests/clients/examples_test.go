package clients_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

const examplesDir = "../../examples"

// languages are those of the examples in folders of their own, and the files of a producer and a reader.
var languages = []struct {
	name, program    string
	producer, reader string
	collect          bool // the producer sends to collect, and not to NATS
}{
	{"go", "go", "go/producer", "go/reader", false},
	{"python", "python3", "python/producer.py", "python/reader.py", true},
	{"shell", "curl", "shell/producer.sh", "shell/reader.sh", true},
	{"typescript", "node", "typescript/producer.ts", "typescript/reader.ts", true},
}

// exampleTimeout bounds one run of an example on a busy machine.
const exampleTimeout = 3 * time.Minute

// example is a command that runs one.
func example(t *testing.T, path string, args []string, env ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), exampleTimeout)
	t.Cleanup(cancel)
	folder := path
	path = filepath.Join(examplesDir, filepath.FromSlash(path))
	var command []string
	switch filepath.Ext(path) {
	case ".py":
		command = []string{"python3", path}
	case ".sh":
		command = []string{"sh", path}
	case ".ts":
		command = []string{"node", javaScript(t, path)}
	default:
		command = []string{stack.BuildExample(t, folder)}
	}
	cmd := exec.CommandContext(ctx, command[0], append(command[1:], args...)...)
	cmd.Env = append(append(os.Environ(), "NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1",
		"PYTHONDONTWRITEBYTECODE=1"), env...)
	return cmd
}

// javaScript returns a file that node runs: a TypeScript file itself, or what esbuild makes of it for a node
// before 22.18.
func javaScript(t *testing.T, path string) string {
	t.Helper()
	if exec.CommandContext(t.Context(), "node", "-e", "process.exit(process.features.typescript ? 0 : 1)").Run() == nil {
		return path
	}
	need(t, "esbuild")
	out := filepath.Join(t.TempDir(), "example.mjs")
	text, err := exec.CommandContext(t.Context(), "esbuild", "--target=node18", "--outfile="+out, path).CombinedOutput()
	require.NoErrorf(t, err, "%s", text)
	return out
}

// run runs an example, and returns what it printed and what it wrote to standard error.
func run(t *testing.T, path, input string, args []string, env ...string) (out, errs string, err error) {
	t.Helper()
	cmd := example(t, path, args, env...)
	var o, e bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &o, &e
	err = cmd.Run()
	return o.String(), e.String(), err
}

// mustRun runs an example that must end with 0, and returns what it printed.
func mustRun(t *testing.T, path, input string, args []string, env ...string) string {
	t.Helper()
	out, errs, err := run(t, path, input, args, env...)
	require.NoErrorf(t, err, "%s %v\n%s%s", path, args, out, errs)
	return out
}

// mustFail runs an example that must end with an error, and write a text to standard error.
func mustFail(t *testing.T, want, path, input string, args []string, env ...string) {
	t.Helper()
	out, errs, err := run(t, path, input, args, env...)
	require.Errorf(t, err, "%s %v ended with 0:\n%s%s", path, args, out, errs)
	require.Contains(t, errs, want)
}

// need skips a test if a program is missing. The Makefile says so, too.
func need(t *testing.T, program string) {
	t.Helper()
	_, err := exec.LookPath(program)
	if err != nil {
		t.Skipf("SKIPPED: %s is not here", program)
	}
}

// What a producer publishes is what the reader of the same example reads. A reader prints what the API finds
// wrong with its question, and that a token is missing.
func TestExamplesReadWhatTheyCount(t *testing.T) {
	t.Parallel()
	nats, redis := stack.SharedNATS(t), stack.SharedRedis(t)
	stack.Ingest(t, nats, redis)
	query, closed := stack.Query(t, redis), stack.Query(t, redis, "QUERY_TOKENS=secret")
	collect := stack.Collect(t, nats)
	for _, the := range languages {
		t.Run(the.name, func(t *testing.T) {
			need(t, the.program)
			odd := the.name + ` "quoted" \ ä`                         // a name that JSON must escape
			input := strings.Repeat(the.name+"\n", 1250) + odd + "\n" // more than one batch of any of them
			mustRun(t, the.producer, input, nil, "NATS_URL="+nats.URL(), "COLLECT_URL="+collect.URL())
			stack.EventuallyTotal(t, query.URL(), the.name, "1h", 1250)
			stack.EventuallyTotal(t, query.URL(), odd, "1h", 1)
			want := fmt.Sprintf("%s 1250 (between 1250 and 1250)\n%s 1 (between 1 and 1)\nnever 0 (between 0 and 0)\n", the.name, odd)
			for _, env := range [][]string{{"QUERY_URL=" + query.URL()}, {"QUERY_URL=" + closed.URL(), "QUERY_TOKEN=secret"}} {
				require.Equal(t, want, mustRun(t, the.reader, "", []string{the.name, odd, "never"}, env...))
			}
			long := []string{strings.Repeat("x", 513)}
			mustFail(t, "512", the.reader, "", long, "QUERY_URL="+query.URL())
			mustFail(t, "QUERY_TOKENS", the.reader, "", long, "QUERY_URL="+closed.URL())
		})
	}
}
