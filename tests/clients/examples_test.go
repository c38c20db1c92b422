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
}

// patience is for one run of an example on a machine with much else to do.
const patience = 3 * time.Minute

// example is a command that runs one.
func example(t *testing.T, path string, args []string, env ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	folder := path
	path = filepath.Join(examplesDir, filepath.FromSlash(path))
	var command []string
	switch filepath.Ext(path) {
	case ".py":
		command = []string{"python3", path}
	case ".sh":
		command = []string{"sh", path}
	default:
		command = []string{stack.BuildExample(t, folder)}
	}
	cmd := exec.CommandContext(ctx, command[0], append(command[1:], args...)...)
	cmd.Env = append(append(os.Environ(), "NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1"), env...)
	return cmd
}

// succeeds runs an example and returns what it printed; it must end with 0.
func succeeds(t *testing.T, path, input string, args []string, env ...string) string {
	t.Helper()
	cmd := example(t, path, args, env...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %v: %v\n%s%s", path, args, err, &out, &errs)
	}
	return out.String()
}

// fails runs an example that must end with an error, and returns what it wrote to standard error.
func fails(t *testing.T, path, input string, args []string, env ...string) string {
	t.Helper()
	cmd := example(t, path, args, env...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &errs
	if err := cmd.Run(); err == nil {
		t.Errorf("%s %v ended with 0:\n%s%s", path, args, &out, &errs)
	}
	return errs.String()
}

// need skips a test if a program is missing. The Makefile says so, too.
func need(t *testing.T, program string) {
	t.Helper()
	_, err := exec.LookPath(program)
	if err != nil {
		t.Skipf("SKIPPED: %s is not here", program)
	}
}

// What a producer publishes is what the reader beside it reads.
func TestExamplesReadWhatTheyCount(t *testing.T) {
	t.Parallel()
	nats, redis := stack.NATS(t), stack.Redis(t)
	stack.Ingest(t, nats, redis)
	query := stack.Query(t, redis)
	collect := stack.Collect(t, nats)
	for _, the := range languages {
		t.Run(the.name, func(t *testing.T) {
			need(t, the.program)
			odd := the.name + ` "quoted" \ ä` // a name that JSON must escape
			var input strings.Builder
			for range 1250 { // more than one batch of any of them
				fmt.Fprintln(&input, the.name)
			}
			fmt.Fprintln(&input, odd)
			succeeds(t, the.producer, input.String(), nil, "NATS_URL="+nats.URL(), "COLLECT_URL="+collect.URL())
			stack.EventuallyTotal(t, query.URL(), the.name, "1h", 1250)
			stack.EventuallyTotal(t, query.URL(), odd, "1h", 1)
			got := succeeds(t, the.reader, "", []string{the.name, odd, "never"}, "QUERY_URL="+query.URL())
			want := fmt.Sprintf("%s 1250 (between 1250 and 1250)\n%s 1 (between 1 and 1)\nnever 0 (between 0 and 0)\n", the.name, odd)
			if got != want {
				t.Errorf("the reader prints\n%swant\n%s", got, want)
			}
		})
	}
}

// A reader says what the API finds wrong with its question, and that a token is missing.
func TestReadersSayWhatIsWrong(t *testing.T) {
	t.Parallel()
	nats, redis := stack.NATS(t), stack.Redis(t)
	stack.Ingest(t, nats, redis)
	open, closed := stack.Query(t, redis), stack.Query(t, redis, "QUERY_TOKENS=secret")
	for _, the := range languages {
		t.Run(the.name, func(t *testing.T) {
			need(t, the.program)
			long := []string{strings.Repeat("x", 513)}
			for want, env := range map[string][]string{
				"512":          {"QUERY_URL=" + open.URL()},
				"QUERY_TOKENS": {"QUERY_URL=" + closed.URL()},
			} {
				said := fails(t, the.reader, "", long, env...)
				if !strings.Contains(said, want) {
					t.Errorf("the reader does not say %s: %s", want, said)
				}
			}
			got := succeeds(t, the.reader, "", []string{"never"}, "QUERY_URL="+closed.URL(), "QUERY_TOKEN=secret")
			if got != "never 0 (between 0 and 0)\n" {
				t.Errorf("with a token the reader prints %q", got)
			}
		})
	}
}
