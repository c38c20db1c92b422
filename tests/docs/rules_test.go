package docs_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/hit"
	"tallyroll/tests/stack"
)

const rulesPage = "../../docs/rules.md"

var nowTime = regexp.MustCompile(`\t20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z`)

// Every rules file of the page is tried as the page does, and prints what the page says. TIME stands for the
// time of the test.
func TestRules(t *testing.T) {
	t.Parallel()
	ingest := stack.Build(t, "ingest")
	file, ran := "", 0
	all := examples(t, rulesPage)
	for i, e := range all {
		switch e.language {
		case "yaml":
			file = e.code
			continue
		case "text":
			continue
		}
		if e.prints != nil {
			continue // see TestRulesAtWork
		}
		t.Run(fmt.Sprintf("line %d", e.line), func(t *testing.T) {
			if i+1 == len(all) || all[i+1].language != "text" {
				t.Fatal("the page does not say what it prints")
			}
			ran++
			dir := t.TempDir()
			err := os.WriteFile(filepath.Join(dir, "rules.yaml"), []byte(file), 0o600)
			require.NoError(t, err)
			command := exec.CommandContext(t.Context(), "sh", "-euc", strings.ReplaceAll(e.code, "bin/ingest", ingest))
			command.Dir = dir
			var said bytes.Buffer
			command.Stderr = &said
			out, err := command.Output()
			if err != nil || said.Len() > 0 {
				t.Fatalf("%v: %s%s", err, out, &said)
			}
			want := all[i+1].code
			got := string(out)
			if strings.Contains(want, "TIME") {
				got = nowTime.ReplaceAllString(got, "\tTIME")
			}
			if got != want {
				t.Errorf("it printed\n%swant\n%s", got, want)
			}
		})
	}
	require.GreaterOrEqual(t, ran, 4)
}

// The first rule counts if it is used as the page describes. The tests run their own worker and NATS client
// in place of the page's commands.
func TestRulesAtWork(t *testing.T) {
	t.Parallel()
	nats, redis := stack.SharedNATS(t), stack.SharedRedis(t)
	dir, rule := t.TempDir(), ""
	run := func(code string, prints *regexp.Regexp, env ...string) string {
		return example{language: "sh", code: code, prints: prints}.run(t, dir, env...)
	}
	add := regexp.MustCompile(`^nats stream add (\S+) --subjects '(\S+)' --defaults$`)
	pub := regexp.MustCompile(`^nats pub (\S+) (.+)$`)
	const work = "INGEST_RULES=rules.yaml bin/ingest &"
	did := map[string]int{}
	for _, e := range examples(t, rulesPage) {
		if e.language == "yaml" && rule == "" {
			rule = e.code
		}
		if e.language != "sh" || e.prints == nil {
			continue
		}
		query := stack.Query(t, redis, stack.NoWait)
		for line := range strings.Lines(e.code) {
			line = strings.TrimSuffix(line, "\n")
			if m := add.FindStringSubmatch(line); m != nil {
				did["add"]++
				if _, err := nats.JetStream().CreateStream(t.Context(), jetstream.StreamConfig{Name: m[1], Subjects: []string{m[2]}}); err != nil {
					t.Fatal(err)
				}
			} else if m := pub.FindStringSubmatch(line); m != nil {
				did["pub"]++
				if _, err := nats.JetStream().Publish(t.Context(), m[1], []byte(run("printf %s "+m[2], nil))); err != nil {
					t.Fatal(err)
				}
			} else if line == work {
				did["work"]++
				file := filepath.Join(dir, "rules.yaml")
				require.NoError(t, os.WriteFile(file, []byte(rule), 0o600))
				stack.Ingest(t, nats, redis, "INGEST_RULES="+file)
			} else {
				did["ask"]++
				run(line, e.prints, "Q="+query.URL())
			}
		}
	}
	for _, what := range []string{"add", "work", "pub", "ask"} {
		if did[what] != 1 {
			t.Errorf("%d lines of the page are of the kind %s", did[what], what)
		}
	}
}

// The pages explain every reason of a reject.
func TestReasonsAreExplained(t *testing.T) {
	rows := table(t, "../../docs/payloads.md", "### Reasons")
	for i, reason := range hit.Reasons {
		if len(rows) != len(hit.Reasons) || rows[i][0] != string(reason) {
			t.Errorf("the table of reasons has %d rows; row %d is not about %s", len(rows), i, reason)
		}
	}
	page := readPage(t, rulesPage)
	for _, reason := range hit.Reasons {
		if !strings.Contains(page, "`"+string(reason)+"`") {
			t.Errorf("%s does not say %s", rulesPage, reason)
		}
	}
}
