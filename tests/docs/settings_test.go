package docs_test

import (
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/web"
	"tallyroll/tests/stack"
)

const settingsPage, httpPage = "../../docs/settings.md", "../../docs/http.md"

var (
	variableHelp = regexp.MustCompile(`(?m)^  ([A-Z][A-Z_]+) +(\S+)  `)
	flagHelp     = regexp.MustCompile(`(?m)^  (--[a-z-]+)(?: [a-z]+)? +(\S+)  `)
	goFlagHelp   = regexp.MustCompile(`(?m)^  (-[a-z-]+)\b`)
)

// helpOf is what a program prints, in at most 110 columns.
func helpOf(t *testing.T, program string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), stack.Build(t, program), "--help").Output()
	require.NoErrorf(t, err, "%s --help\n%s", program, out)
	for line := range strings.Lines(string(out)) {
		require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimRight(line, "\n")), 110, "%s --help: %s", program, line)
	}
	return string(out)
}

// defaults are the settings and their defaults that a pattern finds in a program's help.
func defaults(help string, pattern *regexp.Regexp) map[string]string {
	out := make(map[string]string)
	for _, m := range pattern.FindAllStringSubmatch(help, -1) {
		out[m[1]] = m[2]
	}
	return out
}

// table is the rows of the first table below a heading of a page, without markup, and without its head.
func table(t *testing.T, path, heading string) (rows [][]string) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	_, below, found := strings.Cut(string(text), "\n"+heading+"\n")
	if !found {
		t.Fatalf("%s has no heading %q", path, heading)
	}
	for line := range strings.Lines(below) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			if len(rows) > 0 {
				break
			}
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i, cell := range cells {
			cells[i] = strings.ReplaceAll(strings.TrimSpace(cell), "`", "")
		}
		rows = append(rows, cells)
	}
	require.GreaterOrEqual(t, len(rows), 3)
	return rows[2:]
}

// same reports settings that only one side has, and defaults that differ.
func same(t *testing.T, page, help map[string]string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(help)) {
		switch def, described := page[name]; {
		case !described:
			t.Errorf("docs/settings.md does not describe %s", name)
		case def != help[name]:
			t.Errorf("docs/settings.md gives %s the default %s, --help %s", name, def, help[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(page)) {
		if _, there := help[name]; !there {
			t.Errorf("docs/settings.md describes %s, which --help does not", name)
		}
	}
}

// The reference has every setting of every program, with its default, and no other.
func TestReferenceHasTheSettings(t *testing.T) {
	common := table(t, settingsPage, "### Connections and logs")
	for heading, programs := range map[string]string{"#### NATS": "ingest, publish, redrive, audit, query, collect, watch, rls", "#### Redis": "ingest, audit, query, promql, rls, watch"} {
		for _, row := range table(t, settingsPage, heading) {
			common = append(common, []string{row[0], programs, row[1]})
		}
	}
	for program, own := range map[string]string{
		"ingest": "### Settings of ingest", "query": "### Settings of query", "collect": "### Settings of collect",
		"promql": "### Settings of promql", "rls": "### Settings of rls", "watch": "### Settings of watch", "publish": "", "redrive": "", "audit": "### Settings of audit",
	} {
		t.Run(program, func(t *testing.T) {
			page := make(map[string]string)
			for _, row := range common {
				if slices.Contains(strings.Split(row[1], ", "), program) {
					page[row[0]] = row[2]
				}
			}
			if own != "" {
				for _, row := range table(t, settingsPage, own) {
					page[row[0]] = row[1]
				}
			}
			same(t, page, defaults(helpOf(t, program), variableHelp))
		})
	}
	for _, row := range common {
		for program := range strings.SplitSeq(row[1], ", ") {
			if !slices.Contains(stack.Programs, program) {
				t.Errorf("%s is said to be used by %q, which is no program", row[0], program)
			}
		}
	}
}

func TestReferenceHasTheFlags(t *testing.T) {
	for _, program := range []string{"publish", "redrive", "audit"} {
		page := make(map[string]string)
		for _, row := range table(t, settingsPage, "### Flags of "+program) {
			page[row[0]] = row[1]
		}
		same(t, page, defaults(helpOf(t, program), flagHelp))
	}

	var named, there []string
	for _, row := range table(t, settingsPage, "### Flags of dev") {
		named = append(named, row[0])
	}
	for _, m := range goFlagHelp.FindAllStringSubmatch(helpOf(t, "dev"), -1) {
		if m[1] != "-version" {
			there = append(there, m[1])
		}
	}
	if !slices.Equal(named, there) {
		t.Errorf("docs/settings.md has the flags %v of dev, --help %v", named, there)
	}
}

// The reference has every kind of problem, and no other.
func TestReferenceHasTheProblemTypes(t *testing.T) {
	page, kinds := make(map[string]string), make(map[string]string)
	for _, row := range table(t, httpPage, "#### Problem types") {
		page[strings.Trim(row[0], "*")] = row[1]
	}
	for _, k := range web.Kinds() {
		kinds[k.Name] = strconv.Itoa(k.Status)
	}
	if !maps.Equal(page, kinds) {
		t.Errorf("docs/http.md has the kinds of problems %v, the services %v", page, kinds)
	}
}
