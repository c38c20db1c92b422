package docs_test

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// adaptation says how the test runs a line of a page that it cannot run as it
// stands. Every other line is run word for word.
type adaptation struct {
	line   *regexp.Regexp
	to     string // what runs in its place; empty: nothing does
	reason string
}

var adaptations = []adaptation{
	{regexp.MustCompile(`^make .*`), "", "it builds, tests or runs the whole tree; the test looks only whether there is such a target"},
	{regexp.MustCompile(`.*….*`), "", "it has a place for the reader's own value"},
	{regexp.MustCompile(`^(mkdir -p \S+ && )?(\S+=\S* )*(bin/ingest|bin/query|nats-server|redis-server|docker)\b.*`), "", "a server, which does not end; tests/e2e and tests/deploy start them"},
	{regexp.MustCompile(`^go build .*`), "", "the programs that it builds are there"},
	{regexp.MustCompile(`\bcurl (.*%\{http_code\})`), "command curl $1", "it prints the status, also one that tells of an error"},
	{regexp.MustCompile(`^nats .*`), "", "NATS's command line program is not in the repository; the tests of internal/query ask the same"},
	{regexp.MustCompile(`^curl -N (.*?)( +#.*)?$`), "curl -N --max-time 1 $1 2>/dev/null || test $$? = 28", "it does not end; 28 is curl's word for the time being up"},
	{regexp.MustCompile(`--duration \w+`), "--duration 1s", "it takes as long as it says"},
	{regexp.MustCompile(`\bgo run \./cmd/publish\b`), "bin/publish", "the built program"},
	{regexp.MustCompile(`http://127\.0\.0\.1:8080`), "$$Q", "the port that make run prefers; the test's is another"},
	{regexp.MustCompile(`http://127\.0\.0\.1:8081`), "$$C", "the same, of collect"},
}

// adapted is the script that the test runs for a block.
func adapted(t *testing.T, code string) string {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(code, "\n"), "\n")
	for i, line := range lines {
		for _, a := range adaptations {
			if !a.line.MatchString(line) {
				continue
			}
			line = a.line.ReplaceAllString(line, a.to)
			if line == "" {
				t.Logf("not run: %s (%s)", lines[i], a.reason)
				line = ":"
			}
		}
		for _, v := range []string{"$Q", "$C"} {
			line = strings.ReplaceAll(line, "'"+v, `"`+v+`"'`) // within single quotes it is no variable
		}
		lines[i] = line
	}
	// A status that tells of an error fails the script.
	return "curl() { command curl -sS --fail-with-body \"$@\"; }\n" + strings.Join(lines, "\n") + "\n"
}

var (
	makeTarget = regexp.MustCompile(`(?m)\bmake ([a-z]+)`)
	bodySpan   = regexp.MustCompile("`(\\[?\\{\"key\".*?\\}\\]?)`")
	jsonField  = regexp.MustCompile(`"([a-z_]+)":`)
	repoFile   = regexp.MustCompile(`\b(?:deploy|docs|tests)/[\w./-]*\w`)
)

// pages are those whose commands the test runs, one after the other, on the same servers.
var pages = []string{"../../README.md", "../../docs/start/count.md", "../../docs/start/limit.md", "../../docs/start/alert.md",
	"../../docs/settings.md", "../../docs/payloads.md", "../../docs/http.md"}

func TestReadmeAndReference(t *testing.T) {
	t.Parallel()
	nats, redis := stack.SharedNATS(t), stack.SharedRedis(t)
	stack.Ingest(t, nats, redis)
	query := stack.Query(t, redis, "NATS_URL="+nats.URL(), "QUERY_LIMITS_FILE="+absolute(t, "../../cmd/dev/limits.yml"))
	collect := stack.Collect(t, nats)
	js := nats.JetStream()
	dir := workingDirectory(t)

	// The bodies of their tables are counted as they stand.
	bodies := 0
	for _, path := range pages {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, body := range bodySpan.FindAllSubmatch(text, -1) {
			bodies++
			if _, err := js.Publish(t.Context(), "hits.readme", body[1]); err != nil {
				t.Fatal(err)
			}
		}
		checkNames(t, string(text))
	}
	require.GreaterOrEqual(t, bodies, 2)
	for _, key := range []string{"/home", "a", "my-counter", "my-counter"} { // what the questions ask about, and what was tried before
		if _, err := js.Publish(t.Context(), "hits.readme", fmt.Appendf(nil, `{"key":%q}`, key)); err != nil {
			t.Fatal(err)
		}
	}
	stack.EventuallyTotal(t, query.URL(), "my-counter", "24h", 2)

	scripts, sampled, printed := 0, 0, ""
	for _, path := range pages {
		for _, e := range examples(t, path) {
			t.Run(fmt.Sprintf("%s of %s at line %d", e.language, filepath.Base(path), e.line), func(t *testing.T) {
				switch e.language {
				case "sh":
					scripts++
					e.code = adapted(t, e.code)
					printed = e.run(t, dir, "Q="+query.URL(), "C="+collect.URL(), "NATS_URL="+nats.URL(), "REDIS_URL="+redis.URL())
				case "yaml": // a file that the next block reads
					require.NoError(t, os.WriteFile(filepath.Join(dir, "watch.yml"), []byte(e.code), 0o600))
				case "json": // what the block before it prints, cut
					for _, field := range jsonField.FindAllStringSubmatch(e.code, -1) {
						if !strings.Contains(printed, `"`+field[1]+`":`) {
							t.Errorf("the answer has no field %s:\n%s", field[1], printed)
						}
					}
					if strings.Contains(e.code, `"totals"`) {
						sampled++
						checkTotals(t, e.code)
						checkTotals(t, printed)
						if want := fmt.Sprint(jsonField.FindAllString(printed, -1)); fmt.Sprint(jsonField.FindAllString(e.code, -1)) != want {
							t.Errorf("the sample\n%s\nhas not the fields of the answer:\n%s", e.code, want)
						}
					}
				case "text":
				default:
					t.Errorf("no way to run %s: teach this test", e.language)
				}
			})
		}
	}
	if scripts < 8 || sampled == 0 {
		t.Errorf("only %d scripts and %d samples of totals were found", scripts, sampled)
	}
	for _, want := range []string{"my-counter", "/images/a.png"} {
		if total, _, err := stack.FetchTotal(query.URL(), want, "24h"); err != nil || total.Total == 0 {
			t.Errorf("the examples count no hit of %s: %+v %v", want, total, err)
		}
	}
	checkRejects(t, js)
}

// checkTotals checks that an answer is possible, about windows that end now and hits without a time of their
// own.
func checkTotals(t *testing.T, text string) {
	t.Helper()
	var answer struct {
		AsOf   time.Time `json:"as_of"`
		Totals []struct {
			Window, Cell  string
			From, To      time.Time
			Total, Lower  int64
			Upper         *int64
			Complete      bool
			CountingSince time.Time `json:"counting_since"`
		}
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil || len(answer.Totals) == 0 {
		t.Fatalf("%v in\n%s", err, text)
	}
	for _, c := range answer.Totals {
		window, err := time.ParseDuration(c.Window)
		cell, cellErr := time.ParseDuration(c.Cell)
		if err != nil || cellErr != nil || c.To.Sub(c.From) != window {
			t.Errorf("a window of %s in cells of %s from %s to %s: %v, %v", c.Window, c.Cell, c.From, c.To, err, cellErr)
			continue
		}
		late := c.To.Sub(answer.AsOf) > 5*time.Second
		if answer.AsOf.After(c.To) || late != (c.Upper == nil) {
			t.Errorf("as of %s, the upper bound of a window up to %s is %v", answer.AsOf, c.To, c.Upper)
		}
		if young := c.CountingSince.After(c.From); c.Complete == (late || young) {
			t.Errorf("complete is %v for %s from %s on, as of %s; counting began at %s", c.Complete, c.Window, c.From, answer.AsOf, c.CountingSince)
		}
		if c.Lower > c.Total || c.Upper != nil && c.Total > *c.Upper {
			t.Errorf("%d is not between %d and %d", c.Total, c.Lower, *c.Upper)
		}
		cut := c.From.Truncate(cell)
		counted := cut != c.From && c.CountingSince.Before(cut.Add(cell)) // of the cell that from cuts
		if c.Upper != nil && c.Lower != *c.Upper && !counted {
			t.Errorf("%d to %d from %s on: the cell that is cut is empty, because counting began at %s", c.Lower, *c.Upper, c.From, c.CountingSince)
		}
	}
}

// workingDirectory is one with the files that the pages' commands read.
func workingDirectory(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "bin"), 0o755))
	for _, program := range []string{"publish", "redrive", "audit", "watch"} {
		require.NoError(t, os.Symlink(stack.Build(t, program), filepath.Join(dir, "bin", program)))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "hook.secret"), []byte("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), 0o600))
	log := fmt.Sprintf("192.0.2.1 - - [%s] \"GET /images/a.png HTTP/1.1\" 200 5\n", time.Now().Format("02/Jan/2006:15:04:05 -0700"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "access.log"), []byte(log), 0o600))
	packed, err := os.Create(filepath.Join(dir, "access.log.gz"))
	require.NoError(t, err)
	defer packed.Close()
	zip := gzip.NewWriter(packed)
	if _, err := zip.Write([]byte(log)); err != nil {
		t.Fatal(err)
	}
	require.NoError(t, zip.Close())
	return dir
}

// checkRejects: no example of a body is rejected. A hit that is comes last and tells that
// the worker has passed the others.
func checkRejects(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	const last = `{"key":""}`
	if _, err := js.Publish(t.Context(), "hits.readme", []byte(last)); err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "HITS_REJECTED")
	require.NoError(t, err)
	stack.Eventually(t, "the reject of the last hit", func() (bool, string) {
		info, err := stream.Info(t.Context())
		return err == nil && info.State.Msgs > 0, fmt.Sprint(err)
	})
	first, err := stream.GetMsg(t.Context(), 1)
	require.NoError(t, err)
	if string(first.Data) != last {
		t.Errorf("rejected: %s: %v", first.Data, first.Header)
	}
}

// checkNames: the targets and files that a page names are there.
func checkNames(t *testing.T, text string) {
	t.Helper()
	makefile, err := os.ReadFile("../../Makefile")
	require.NoError(t, err)
	for _, block := range strings.Split(text, "```sh\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		for _, m := range makeTarget.FindAllStringSubmatch(block, -1) {
			if !strings.Contains(string(makefile), "\n"+m[1]+":") {
				t.Errorf("the Makefile has no target %s", m[1])
			}
		}
	}
	for _, file := range repoFile.FindAllString(text, -1) {
		if _, err := os.Stat(filepath.Join("../..", file)); err != nil {
			t.Error(err)
		}
	}
}
