// Command prose checks all words that people read with Vale: those of pages, of Go comments and string
// literals, of names of tests, and of scripts, settings and the Makefile. It also checks that Go comments
// have at most 110 columns and name only what exists, and that code has at most 120 columns. It prints each
// finding with file, line and column, then the findings per directory, and exits with 1 if there are any.
// Arguments are files and directories; without any it checks the whole tree.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	vale = "github.com/errata-ai/vale/v3/cmd/vale@v3.17.1"
	// maxColumns is that of the pages (tests/docs). A tab is one column.
	maxColumns = 110
	// batch is how many files one run of Vale gets: an argument list has a bound.
	batch = 500
)

// unchecked are files and directories that nobody is to reword, each with the reason.
var unchecked = map[string]string{
	"docs/benchmarks-tables.md": "make bench writes it",
	"bin":                       "built programs",
	"data":                      "data of local servers",
	"tests/prose/styles":        "the rules name what they forbid",
}

var webAddress = regexp.MustCompile(`https?://\S+`)

func main() {
	paths := os.Args[1:]
	if len(paths) == 0 {
		paths = []string{"."}
	}
	found, err := check(paths)
	for _, finding := range found {
		fmt.Println(finding)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "prose:", err)
		os.Exit(2)
	}
	if len(found) > 0 {
		summarize(found)
		os.Exit(1)
	}
}

// check returns the findings in files and directories, as "file:line:column:rule:message".
func check(paths []string) (found []string, err error) {
	files, err := list(paths)
	if err != nil {
		return nil, err
	}
	texts, err := os.MkdirTemp("", "prose")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(texts)
	names, of, err := writeTexts(texts, files)
	if err != nil {
		return nil, err
	}
	pages := slices.DeleteFunc(slices.Clone(files), isWhole)
	for chunk := range slices.Chunk(append(pages, names...), batch) {
		lines, err := runVale(chunk, of)
		if err != nil {
			return nil, err
		}
		found = append(found, lines...)
	}
	named, err := readTree(".")
	if err != nil {
		return nil, err
	}
	stale, err := named.staleNames(files)
	if err != nil {
		return nil, err
	}
	found = append(found, stale...)
	for _, file := range files {
		lines, err := longCode(file)
		if err == nil && strings.HasSuffix(file, ".go") {
			var comments []string
			comments, err = longComments(file)
			lines = append(lines, comments...)
		}
		if err != nil {
			return nil, err
		}
		found = append(found, lines...)
	}
	return found, nil
}

// list returns the Markdown pages, Go files and files that are read whole in paths.
func list(paths []string) (files []string, err error) {
	for _, root := range paths {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			path = filepath.ToSlash(filepath.Clean(path))
			_, skip := unchecked[path]
			hidden := strings.HasPrefix(entry.Name(), ".") && path != "."
			switch ext := filepath.Ext(path); {
			case entry.IsDir() && (skip || hidden || entry.Name() == "testdata"):
				return filepath.SkipDir
			case !entry.IsDir() && !skip && (ext == ".md" || ext == ".go" || isWhole(path)):
				files = append(files, path)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return files, nil
}

// runVale returns Vale's findings in files. A finding in a text is one of the file that it is of. Vale's exit
// code is 1 if there are any.
func runVale(files []string, of map[string]string) (found []string, err error) {
	args := append([]string{"run", vale, "--config=tests/prose/vale.ini", "--output=line"}, files...)
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1") // Vale parses Go with a parser in C
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	lines := bufio.NewScanner(&out)
	for lines.Scan() {
		finding := lines.Text()
		if name, rest, ok := strings.Cut(finding, ":"); ok && of[name] != "" {
			finding = of[name] + ":" + rest
		}
		found = append(found, locate(finding))
	}
	if failed := new(exec.ExitError); err != nil && (!errors.As(err, &failed) || len(found) == 0) {
		return nil, fmt.Errorf("run Vale: %w\n%s%s", err, &errs, strings.Join(found, "\n"))
	}
	return found, nil
}

var valeFinding = regexp.MustCompile(`^(.+?):(\d+):(\d+):(.*instead of “(\S+).*)$`)

// locate corrects the line of a finding: in a comment with lists, Vale may be some lines off. The nearest
// line with the first word of the phrase is right.
func locate(finding string) string {
	m := valeFinding.FindStringSubmatch(finding)
	if m == nil {
		return finding
	}
	source, err := os.ReadFile(m[1])
	if err != nil {
		return finding
	}
	lines := strings.Split(strings.ToLower(string(source)), "\n")
	word := strings.ToLower(strings.TrimRight(m[5], "”."))
	near, _ := strconv.Atoi(m[2])
	for off := range 30 {
		for _, n := range []int{near - off, near + off} {
			if n < 1 || n > len(lines) || !strings.Contains(lines[n-1], word) {
				continue
			}
			if off > 0 {
				m[3] = strconv.Itoa(strings.Index(lines[n-1], word) + 1)
			}
			return fmt.Sprintf("%s:%d:%s:%s", m[1], n, m[3], m[4])
		}
	}
	return finding
}

// longComments returns the comment lines of a Go file that have too many columns. Addresses do not count.
func longComments(file string) (found []string, err error) {
	source, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	files := token.NewFileSet()
	positions := files.AddFile(file, -1, len(source))
	lines := strings.Split(string(source), "\n")
	var s scanner.Scanner
	s.Init(positions, source, nil, scanner.ScanComments)
	for {
		pos, kind, text := s.Scan()
		if kind == token.EOF {
			return found, nil
		}
		if kind != token.COMMENT || strings.HasPrefix(text, "//go:") {
			continue
		}
		first := files.Position(pos)
		for i := range strings.Count(text, "\n") + 1 {
			line := lines[first.Line-1+i]
			if i == 0 && strings.TrimSpace(line[:first.Column-1]) != "" {
				continue // after code: gofmt aligns it
			}
			if n := utf8.RuneCountInString(webAddress.ReplaceAllString(line, "")); n > maxColumns {
				found = append(found, fmt.Sprintf("%s:%d:%d:Columns:Wrap this comment: it has %d columns of at most %d.",
					file, first.Line+i, maxColumns+1, n, maxColumns))
			}
		}
	}
}

// summarize prints the number of findings per directory.
func summarize(found []string) {
	counts := make(map[string]int)
	for _, line := range found {
		file, _, _ := strings.Cut(line, ":")
		counts[filepath.Dir(file)]++
	}
	fmt.Println()
	for _, dir := range slices.Sorted(maps.Keys(counts)) {
		fmt.Printf("%5d  %s\n", counts[dir], dir)
	}
	fmt.Printf("%5d  in all\n", len(found))
}
