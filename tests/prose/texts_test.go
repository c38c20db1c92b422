package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var plantedTexts = map[string]string{
	"store.go": `package store

import "tallyroll/the seat"

// Setting has a tag, of which the name is none of Vale's.
type Setting struct {
	Seat int ` + "`json:\"the seat\" doc:\"Nobody knows.\" help:\"there are sirens\"`" + `
}

var name = "doubt"

func log() {
	print("allowed is a number", 'x', ` + "`" + `
two lines, for want of one` + "`" + `)
	print("it is missing: key", ": it is empty", "\nHITS ARE LOST", "the result is")
	print("the port is taken: true", "missing; must be a number; HTTP is fine")
}
`,
	"store_test.go": `package store

func TestTheSeatIsTaken(t *T) { print("allowed is a literal of a test") }
`,
	"page.js": `// This is for
// want of a page.
const patience = 1

const title = 'How many different ones'
`,
	"step.lua":     "-- the beat of a script\nlocal grains = 1\n",
	"Makefile":     "run: ## what somebody runs\n\t@echo \"by Zipf's law\"\n",
	"alerts.yml":   "- alert: TallyrollAdmission\n  expr: rate(tallyroll_ingest_admissions_total[5m])\n",
	"CHANGELOG.md": "# Changelog\n\n- It begins anew.\n",
	"wide.js":      "const a = '" + strings.Repeat("x", maxCode) + "'\n",
	"wide.lua":     "local a = '" + strings.Repeat("x", maxCode) + "'\n",
	"wide.go": "package store\n\nvar a = \"" + strings.Repeat("x", maxCode) + "\"\n\n" +
		"// " + strings.Repeat("x ", 50) + "\nvar b = `\n" + strings.Repeat("x", maxCode) + "`\n\nfunc f() {\n\t\t\tprint(\"" + strings.Repeat("x", maxCode-20) + "\")\n}\n",
}

// The check finds one word or line of each kind, on its line, and no other.
func TestTexts(t *testing.T) {
	t.Chdir("../..")
	dir := t.TempDir()
	for name, text := range plantedTexts {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	found, err := check([]string{dir})
	require.NoError(t, err)
	want := []string{
		"store.go:7 Nobody knows", "store.go:7 sirens", "store.go:13 allowed is", "store.go:14 for want of",
		"store.go:15 it is", "store.go:15 it is empty", "store.go:15 HITS ARE", "store.go:16 port is taken",
		"store_test.go:3 the seat",
		"page.js:1 for want of", "page.js:3 patience", "page.js:5 How many different",
		"step.lua:1 the beat", "step.lua:2 grains",
		"Makefile:1 somebody", "Makefile:2 Zipf's law",
		"alerts.yml:1 TallyrollAdmission", "alerts.yml:2 tallyroll_ingest_admissions_total",
		"CHANGELOG.md:3 begins anew",
		"wide.js:1 Wrap this line", "wide.lua:1 Wrap this line", "wide.go:3 Wrap this line", "wide.go:10 Wrap this line",
	}
	finding := regexp.MustCompile(`^(?:.*/)?([^/:]+:\d+):.*(?:instead of “(.*)”\.|(Wrap this line):.*)$`)
	for i := range found {
		found[i] = strings.TrimSpace(finding.ReplaceAllString(found[i], "$1 $2$3"))
	}
	require.ElementsMatch(t, want, found, strings.Join(found, "\n"))
}
