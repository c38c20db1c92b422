package docs_test

import (
	"encoding/json"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	"tallyroll/internal/limit/limitfile"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/platform/yamlfile"
	"tallyroll/internal/rules"
	"tallyroll/internal/watch"
	watchform "tallyroll/internal/watch/form"
	"tallyroll/internal/web/access"
	"tallyroll/tests/schema"
	"tallyroll/tests/stack"
)

// unparsed are the languages of blocks that this test does not read, each with the reason.
var unparsed = map[string]string{
	"text":   "formats, pictures and output",
	"html":   "tests/page loads it",
	"python": "TestQueries runs it",
	"js":     "TestQueries runs it",
	"promql": "its parser is no dependency of this module",
}

// Every block of the pages can be read as what its fence says, and its commands have the settings and flags
// that it uses.
func TestBlocksAreSound(t *testing.T) {
	t.Parallel()
	read := map[string]int{}
	for _, path := range textPages(t) {
		for _, finding := range indentedBlocks(readPage(t, path)) {
			t.Errorf("%s:%d: code needs a fence with its language", path, finding)
		}
		for _, e := range blocks(readPage(t, path)) {
			read[e.language]++
			if err := e.check(t); err != nil {
				t.Errorf("%s:%d: %s: %v", path, e.line, e.language, err)
			}
		}
	}
	for language, least := range map[string]int{"sh": 90, "yaml": 15, "json": 2, "go": 1} {
		if read[language] < least {
			t.Errorf("only %d blocks of %s were found", read[language], language)
		}
	}
}

// indentedBlocks returns the lines at which Markdown sees code without a fence.
func indentedBlocks(page string) (found []int) {
	before, fenced := "", false
	for i, line := range strings.Split(page, "\n") {
		text := strings.TrimSpace(line)
		if strings.HasPrefix(text, "```") {
			fenced = !fenced
		} else if !fenced && before == "" && strings.HasPrefix(line, "    ") && text != "" && !strings.HasPrefix(text, "- ") {
			found = append(found, i+1)
		}
		before = text
	}
	return found
}

// check reads a block as its language.
func (e example) check(t *testing.T) error {
	switch e.language {
	case "sh":
		return e.checkShell(t)
	case "yaml":
		return e.checkYAML(t)
	case "json":
		var value any
		return json.Unmarshal([]byte(e.code), &value)
	case "go":
		body := strings.ReplaceAll(e.code, "…", "")
		_, err := parser.ParseFile(token.NewFileSet(), "", "package p\nfunc _() {\n"+body+"\n}", 0)
		return err
	}
	if unparsed[e.language] == "" {
		return fmt.Errorf("a fence must name one of sh, yaml, json, go, text, html, python, js, promql")
	}
	return nil
}

// checkYAML reads files of limits, tokens, rules and alerts as the programs and as editors do.
func (e example) checkYAML(t *testing.T) error {
	var value any
	if err := yaml.Unmarshal([]byte(e.code), &value); err != nil {
		return err
	}
	var err error
	var form yamlfile.Schema
	switch top := value.(type) {
	case []any:
		if rule, ok := top[0].(map[string]any); ok && rule["stream"] != nil {
			_, err = rules.Parse([]byte(e.code))
			form = rules.Schema()
		}
	case map[string]any:
		switch {
		case top["limits"] != nil:
			_, err = limitfile.Parse([]byte(e.code))
			form = limitfile.Schema()
		case top["rules"] != nil:
			_, err = watch.Parse([]byte(e.code), limitsOfRules(t))
			form = watchform.Schema()
		case top["tokens"] != nil:
			file := filepath.Join(t.TempDir(), "tokens.yml")
			if err := os.WriteFile(file, []byte(e.code), 0o600); err != nil {
				return err
			}
			files := setting.NewFiles(zerolog.Nop(), func(string) func(error) { return func(error) {} })
			_, err = access.New(access.TokenSettings{Program: "query", File: file}, files)
			form = access.Schema()
		}
	default:
		return fmt.Errorf("must be a mapping or a list, not %T", value)
	}
	if err == nil && form != nil {
		err = schema.Check(form, []byte(e.code))
	}
	return err
}

// limitsOfRules are the limits that rules of alerts name.
func limitsOfRules(t *testing.T) limitfile.Set {
	t.Helper()
	set, err := limitfile.Parse([]byte(`limits: [{name: plan-pro, window: 30d, max: 100000, count: {nearly: "nearly.{limit}.{key}"}}]`))
	require.NoError(t, err)
	return set
}

var (
	settingUse = regexp.MustCompile(`\b((?:NATS|REDIS|INGEST|QUERY|COLLECT|PROMQL|WATCH|RLS|TALLYROLL|LOG)_[A-Z_]+)=`)
	programUse = regexp.MustCompile(`(?:^|[|&;] *|[A-Z_]+=\S* )(?:bin/)?(` + strings.Join(stack.Programs, "|") + `) +([^|&;#]*)`)
	flagUse    = regexp.MustCompile(`(?:^| )(--[a-z-]+)`)
	settingRow = regexp.MustCompile("(?m)^\\| `([A-Z_]+)` \\|")
)

// checkShell checks the syntax of commands, and that their settings and flags exist.
func (e example) checkShell(t *testing.T) error {
	cmd := exec.CommandContext(t.Context(), "sh", "-n")
	cmd.Stdin = strings.NewReader(e.code)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	var settings []string
	for _, m := range settingRow.FindAllStringSubmatch(readPage(t, settingsPage), -1) {
		settings = append(settings, m[1])
	}
	for line := range strings.Lines(e.code) {
		if strings.Contains(line, "go test") {
			continue // settings of tests
		}
		for _, m := range settingUse.FindAllStringSubmatch(line, -1) {
			if !slices.Contains(settings, m[1]) {
				return fmt.Errorf("docs/settings.md has no setting %s", m[1])
			}
		}
		for _, m := range programUse.FindAllStringSubmatch(line, -1) {
			for _, flag := range flagUse.FindAllStringSubmatch(m[2], -1) {
				if !regexp.MustCompile(`[^\w-]` + flag[1] + `\b`).MatchString(helpOf(t, m[1])) {
					return fmt.Errorf("%s has no flag %s", m[1], flag[1])
				}
			}
		}
	}
	return nil
}

// The check finds a block of each kind that cannot be read.
func TestBadBlocksAreFound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, page, want string }{
		{"no language", "```\nmake run\n```\n", "a fence must name"},
		{"shell syntax", "```sh\nif true\n```\n", "exit status 2"},
		{"setting", "```sh\nQUERY_NONE=1 bin/query\n```\n", "no setting QUERY_NONE"},
		{"flag", "```sh\nbin/publish --rate 1 --none\n```\n", "publish has no flag --none"},
		{"JSON", "```json\n{\"a\":…}\n```\n", "invalid character"},
		{"Go", "```go\na :=\n```\n", "expected"},
		{"joined lines", "```yaml\ntokens:\n  - name: ops sha256: 65e8 may: [read]\n```\n", "mapping values are not allowed"},
		{"token", "```yaml\ntokens:\n  - name: ops\n    may: [none]\n```\n", "sha256"},
		{"limit", "```yaml\nlimits:\n  - name: a\n    windo: 1m\n```\n", "windo"},
		{"rule", "```yaml\n- stream: A\n  kye: a\n```\n", "kye"},
		{"alert", "```yaml\ntargets: {a: {nats: a}}\nrules:\n  - name: a\n    abov: 1\n```\n", "abov"},
		{"word", "```yaml\nlimits\n```\n", "must be a mapping"},
		{"list item", "- a list\n\n  ```json\n  {\n  ```\n", "unexpected end"},
	} {
		t.Run(c.name, func(t *testing.T) {
			found := blocks(c.page)
			if len(found) != 1 {
				t.Fatalf("%d blocks were found", len(found))
			}
			if err := found[0].check(t); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("found %v, want %s", err, c.want)
			}
		})
	}
	if found := indentedBlocks("text\n\n    code\n\n```sh\n\n    code\n```\n"); !slices.Equal(found, []int{3}) {
		t.Errorf("indented blocks: %v", found)
	}
}
