package docs_test

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// maxColumns is the longest line of prose. Tables, code and addresses may be longer.
const maxColumns = 110

var (
	webAddress = regexp.MustCompile(`https?://\S+`)
	codeSpan   = regexp.MustCompile("`[^`]*`")
	link       = regexp.MustCompile(`\[[^\]]*\]\(([^)\s]+)\)`)
	linkMarkup = regexp.MustCompile(`\]\([^)]*\)`)
)

// textPages are the pages that people read.
func textPages(t *testing.T) []string {
	t.Helper()
	pages, err := filepath.Glob("../../*.md")
	require.NoError(t, err)
	docs, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	start, err := filepath.Glob("../../docs/start/*.md")
	require.NoError(t, err)
	docs = append(append(docs, start...), "../../examples/README.md")
	if pages = append(pages, docs...); len(pages) < 10 {
		t.Fatalf("only %d pages were found", len(pages))
	}
	return pages
}

// prose is the lines of a page, with those of code blocks empty.
func prose(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	lines := strings.Split(string(text), "\n")
	inCode := false
	for i, line := range lines {
		fence := strings.HasPrefix(strings.TrimSpace(line), "```")
		if fence {
			inCode = !inCode
		}
		if fence || inCode || strings.HasPrefix(line, "    ") && i > 0 && lines[i-1] == "" && !strings.HasPrefix(strings.TrimSpace(line), "- ") {
			lines[i] = ""
		}
	}
	return lines
}

func TestLinesAreShort(t *testing.T) {
	for _, path := range textPages(t) {
		for i, line := range prose(t, path) {
			if strings.HasPrefix(line, "|") || strings.HasPrefix(line, "<!-- prints: ") || strings.HasPrefix(line, "<!-- not run: ") || strings.HasPrefix(line, "[Tallyroll](") {
				continue // of a page's place, see TestPagesShowWhereTheyAre
			}
			if n := utf8.RuneCountInString(webAddress.ReplaceAllString(line, "")); n > maxColumns {
				t.Errorf("%s:%d has %d columns; at most %d are allowed outside of tables, code and addresses", path, i+1, n, maxColumns)
			}
		}
	}
}

// Every relative link leads to a file, and its anchor to a heading of that file.
func TestLinksLeadSomewhere(t *testing.T) {
	links := 0
	for _, path := range textPages(t) {
		text := codeSpan.ReplaceAllString(strings.Join(prose(t, path), "\n"), "`code`")
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			u, err := url.Parse(m[1])
			if err != nil {
				t.Errorf("%s: %v", path, err)
				continue
			}
			if u.Scheme != "" {
				continue
			}
			links++
			target := path
			if u.Path != "" {
				target = filepath.Join(filepath.Dir(path), filepath.FromSlash(u.Path))
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", path, m[1], err)
				continue
			}
			if u.Fragment != "" && !anchors(t, target)[u.Fragment] {
				t.Errorf("%s links to %s: %s has no such heading", path, m[1], target)
			}
		}
	}
	require.GreaterOrEqual(t, links, 20)
}

// anchors are those that GitHub gives to the headings of a page.
func anchors(t *testing.T, path string) map[string]bool {
	t.Helper()
	out := make(map[string]bool)
	for _, line := range prose(t, path) {
		hashes, heading, ok := strings.Cut(line, " ")
		if !ok || hashes == "" || strings.Trim(hashes, "#") != "" {
			continue
		}
		name := anchor(heading)
		for n := 1; out[name]; n++ {
			name = fmt.Sprintf("%s-%d", anchor(heading), n)
		}
		out[name] = true
	}
	return out
}

// anchor keeps letters, digits, hyphens and underscores of a heading in lower case, and turns spaces into
// hyphens.
func anchor(heading string) string {
	heading = linkMarkup.ReplaceAllString(heading, "]") // of a link, its text
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}

func TestAnchor(t *testing.T) {
	for heading, want := range map[string]string{
		"What a hit costs":             "what-a-hit-costs",
		"`NATS_URL`":                   "nats_url",
		"Replicas, Sentinel & Cluster": "replicas-sentinel--cluster",
		"On paper: ten million":        "on-paper-ten-million",
		"See [the page](design.md)":    "see-the-page",
	} {
		if got := anchor(heading); got != want {
			t.Errorf("%q is at #%s, not #%s", heading, want, got)
		}
	}
}
