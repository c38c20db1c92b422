// Package docs_test runs the examples of the documentation against real servers.
package docs_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

func TestMain(m *testing.M) { stack.Main(m) }

// example is a fenced block, and what it must print.
type example struct {
	line           int
	language, code string
	prints         *regexp.Regexp // nil: the page does not say
	notRun         string         // why no test runs it
}

var (
	printsComment = regexp.MustCompile(`^<!-- prints: (.*) -->$`)
	notRunComment = regexp.MustCompile(`^<!-- not run: (.+) -->$`)
	apiPath       = regexp.MustCompile(`/v1/[a-z]+|/probe`)
)

// examples are the blocks of a page that a test runs or reads.
func examples(t *testing.T, path string) []example {
	t.Helper()
	return slices.DeleteFunc(blocks(readPage(t, path)), func(e example) bool { return e.notRun != "" })
}

// blocks reads the fenced blocks of a page, each with the comment before it that says what it prints, or why
// no test runs it.
func blocks(page string) (out []example) {
	var prints *regexp.Regexp
	var open *example
	notRun, indent := "", ""
	for i, line := range strings.Split(page, "\n") {
		if text := strings.TrimLeft(line, " "); open == nil && strings.HasPrefix(text, "```") {
			indent = line[:len(line)-len(text)] // within a list
		}
		line = strings.TrimPrefix(line, indent)
		language, fence := strings.CutPrefix(line, "```")
		switch m, not := printsComment.FindStringSubmatch(line), notRunComment.FindStringSubmatch(line); {
		case open != nil && fence:
			out = append(out, *open)
			open, prints, notRun, indent = nil, nil, "", ""
		case open != nil:
			open.code += line + "\n"
		case m != nil:
			prints = regexp.MustCompile("(?m)" + m[1])
		case not != nil:
			notRun = not[1]
		case fence:
			open = &example{line: i + 1, language: language, prints: prints, notRun: notRun}
		}
	}
	return out
}

// run runs an example in a directory.
func (e example) run(t *testing.T, dir string, env ...string) (printed string) {
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute) // a Go example is compiled first
	defer cancel()
	file := filepath.Join(dir, map[string]string{"sh": "e.sh", "python": "e.py", "js": "e.mjs", "go": "main.go"}[e.language])
	command := map[string][]string{"sh": {"sh", "-eu", file}, "python": {"python3", file}, "js": {"node", file}, "go": {"go", "run", file}}[e.language]
	if command == nil {
		t.Fatalf("no way to run %s", e.language)
	}
	if _, err := exec.LookPath(command[0]); err != nil {
		t.Skipf("%s is not here", command[0])
	}
	require.NoError(t, os.WriteFile(file, []byte(e.code), 0o600))
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil || errs.Len() > 0 || e.prints != nil && !e.prints.Match(out.Bytes()) {
		t.Errorf("%v; it printed\n%s%s\nwant %s", err, &out, &errs, e.prints)
	}
	return out.String()
}

func TestQueries(t *testing.T) {
	t.Parallel()
	const path = "../../docs/queries.md"
	nats, redis := stack.SharedNATS(t), stack.SharedRedis(t)
	stack.Ingest(t, nats, redis)
	query := stack.Query(t, redis, "NATS_URL="+nats.URL(), "QUERY_TAKE=any") // as make run
	now := time.Now()
	hits := fmt.Sprintf(`[{"key":"checkout","n":7},{"key":"/cart","n":2},{"key":"checkout","n":3,"ts":%d}`, now.Add(-25*time.Hour).UnixMilli())
	counters := []string{"checkout", "/cart", "visitors"}
	for i := range 150 { // more than a page of names
		name := fmt.Sprintf("shop.%03d", i)
		counters = append(counters, name)
		hits += fmt.Sprintf(`,{"key":%q}`, name)
	}
	hits += `,{"key":"visitors","unique":"ann"},{"key":"visitors","unique":"bob"}]`
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := nats.JetStream().Publish(ctx, "hits.x", []byte(hits)); err != nil {
		t.Fatal(err)
	}
	if _, err := nats.JetStream().Publish(ctx, "hits.x", []byte("not a hit")); err != nil {
		t.Fatal(err)
	}
	stack.Eventually(t, "the reject", func() (bool, string) {
		_, body, err := stack.Do(http.MethodGet, query.URL()+"/v1/rejects", nil)
		return bytes.Contains(body, []byte("not a hit")), fmt.Sprint(string(body), err)
	})
	stack.Eventually(t, "all counters", func() (bool, string) { // shards advance one by one
		answer, err := stack.FetchTotals(query.URL(), url.Values{"key": counters, "window": {"1h"}})
		return err == nil && !slices.ContainsFunc(answer.Totals, func(c stack.Total) bool { return c.Total == 0 }), fmt.Sprint(err)
	})
	_, api, err := stack.Do(http.MethodGet, query.URL()+"/openapi.json", nil)
	require.NoError(t, err)

	ran := 0
	for _, e := range examples(t, path) {
		if e.language == "yaml" || e.language == "text" {
			continue // TestBlocksAreSound reads them
		}
		t.Run(fmt.Sprintf("%s at line %d", e.language, e.line), func(t *testing.T) {
			for _, used := range apiPath.FindAllString(e.code, -1) {
				if !bytes.Contains(api, []byte(`"`+used+`"`)) {
					t.Errorf("%s is not in the OpenAPI document", used)
				}
			}
			ran++
			if e.prints == nil {
				t.Error("the example does not say what it prints")
			}
			e.run(t, t.TempDir(), "Q="+query.URL())
		})
	}
	require.GreaterOrEqual(t, ran, 10)
}
