// Package cases reads what a test asks, and what it must get, from files that read like documentation.
//
//	# A comment.
//	== a section: what the cases below it share
//	what is given,
//	on one line or several
//		what comes of it: lines that begin with a tab
//
// If what is given has bytes that such a line cannot have, it is in quotes, as in Go. <<ab*200>> is "ab" 200
// times.
package cases

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// update is the variable that makes Check write what comes of the cases, instead of comparing it.
const update = "UPDATE_CASES"

var repeated = regexp.MustCompile(`<<(.+?)\*(\d+)>>`)

// Check calls do for each case of testdata/<name>.txt, and compares what it returns.
func Check(t *testing.T, name string, do func(t *testing.T, section, given string) string) {
	t.Helper()
	path := filepath.Join("testdata", name+".txt")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	section, n := "", 0
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	for i := 0; i < len(lines); {
		line := lines[i]
		if between(line) {
			if after, ok := strings.CutPrefix(line, "== "); ok {
				section = read(after)
			}
			out.WriteString(line + "\n")
			i++
			continue
		}
		first := i
		given := take(lines, &i, func(line string) bool { return !between(line) && line[0] != '\t' })
		want := strings.Join(take(lines, &i, func(line string) bool { return strings.HasPrefix(line, "\t") }), "\n")
		got := ""
		if text := show(do(t, section, read(strings.Join(given, "\n")))); text != "" {
			got = "\t" + strings.ReplaceAll(text, "\n", "\n\t")
		}
		if got != want && os.Getenv(update) == "" {
			t.Errorf("%s:%d: %s\ngot\n%s\nwant\n%s\n(%s=1 writes what it got)", path, first+1, strings.Join(given, "\n"), got, want, update)
		}
		out.WriteString(strings.Join(given, "\n") + "\n")
		if got != "" {
			out.WriteString(got + "\n")
		}
		n++
	}
	if n == 0 {
		t.Errorf("%s has no case", path)
	}
	if os.Getenv(update) == "" {
		return
	}
	if err := os.WriteFile(path, []byte(out.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// between is whether a line belongs to no case.
func between(line string) bool {
	return line == "" || strings.HasPrefix(line, "# ") || strings.HasPrefix(line, "== ")
}

// take returns the lines from *i on that belong together, and moves *i behind them.
func take(lines []string, i *int, belongs func(string) bool) (out []string) {
	for *i < len(lines) && belongs(lines[*i]) {
		out = append(out, lines[*i])
		*i++
	}
	return out
}

// read is what a text in a file stands for.
func read(text string) string {
	text = repeated.ReplaceAllStringFunc(text, func(s string) string {
		parts := repeated.FindStringSubmatch(s)
		n, _ := strconv.Atoi(parts[2])
		return strings.Repeat(parts[1], n)
	})
	if unquoted, err := strconv.Unquote(text); err == nil && text[0] == '"' {
		return unquoted
	}
	return text
}

// show writes a text as a file has it: in quotes if it is not printable, and long runs of a character in
// short.
func show(text string) string {
	if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) {
		text = strconv.Quote(text)
	}
	var out strings.Builder
	for rest := text; rest != ""; {
		r, size := utf8.DecodeRuneInString(rest)
		n := len(rest) - len(strings.TrimLeft(rest, string(r)))
		if n/size < 40 {
			out.WriteString(rest[:n])
		} else {
			fmt.Fprintf(&out, "<<%c*%d>>", r, n/size)
		}
		rest = rest[n:]
	}
	return out.String()
}
