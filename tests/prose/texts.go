package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// whole are the files that Vale reads as text from the first to the last line: all of their comments, names
// and strings are words that people read.
var whole = []string{".js", ".lua", ".html", ".sh", ".yml", ".yaml", ".conf", ".env", ".service", ".json",
	"Makefile", "Dockerfile"}

func isWhole(file string) bool {
	return slices.Contains(whole, filepath.Ext(file)) || slices.Contains(whole, filepath.Base(file))
}

// writeTexts writes the texts of files that are no pages into a directory, for Vale. A text is on its line of
// the file, and what nobody reads is blank. It returns the names of what it has written, and of which file
// each is.
func writeTexts(dir string, files []string) (names []string, of map[string]string, err error) {
	of = map[string]string{}
	for i, file := range files {
		goFile := filepath.Ext(file) == ".go"
		if !goFile && !isWhole(file) {
			continue
		}
		source, err := os.ReadFile(file)
		if err != nil {
			return nil, nil, err
		}
		text := joinComments(source)
		if goFile {
			if text, err = goTexts(file, source); err != nil {
				return nil, nil, err
			}
		}
		name := filepath.Join(dir, strconv.Itoa(i)+".txt")
		if err := os.WriteFile(name, text, 0o600); err != nil {
			return nil, nil, err
		}
		names, of[name] = append(names, name), file
	}
	return names, of, nil
}

var (
	capital = regexp.MustCompile(`[A-Z]`)
	escape  = regexp.MustCompile(`\\.`)
	leader  = regexp.MustCompile(`^\s*(?://|--|#)\s?`)
)

// goTexts returns the texts of a Go file: the names of a test file's tests, split into words; of other files
// the string literals, of a field's tag what describes the field. A literal of one word is a name.
func goTexts(file string, source []byte) ([]byte, error) {
	set := token.NewFileSet()
	syntax, err := parser.ParseFile(set, file, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	texts := bytes.Repeat([]byte(" "), len(source))
	for i, c := range source {
		if c == '\n' {
			texts[i] = '\n'
		}
	}
	put := func(pos token.Pos, text string) {
		to := texts[set.Position(pos).Offset:]
		for i := range min(len(to), len(text)) {
			if to[i] == '\n' && text[i] != '\n' {
				return
			}
			to[i] = text[i]
		}
	}
	if strings.HasSuffix(file, "_test.go") {
		for _, decl := range syntax.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && testName.MatchString(f.Name.Name) {
				put(f.Pos(), strings.ToLower(capital.ReplaceAllString(f.Name.Name, " $0")))
			}
		}
		return texts, nil
	}
	tags := map[*ast.BasicLit]bool{}
	ast.Inspect(syntax, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.Field:
			tags[x.Tag] = true
		case *ast.BasicLit:
			switch {
			case tags[x]:
				tag := reflect.StructTag(strings.Trim(x.Value, "`"))
				put(x.Pos(), strconv.Quote(tag.Get("doc")+tag.Get("help")))
			case x.Kind == token.STRING && strings.Contains(x.Value, " "):
				put(x.Pos(), escape.ReplaceAllString(x.Value, "  "))
			}
		}
		return true
	})
	return texts, nil
}

// joinComments puts each comment of several lines on its first line, so that a rule also finds a phrase that
// is wrapped. The other lines stay, empty.
func joinComments(source []byte) []byte {
	var out bytes.Buffer
	ends := 0 // of lines, that are still to be written
	for line := range strings.Lines(string(source)) {
		text, ended := strings.CutSuffix(line, "\n")
		start := leader.FindString(text)
		switch {
		case start != "" && ends > 0:
			text = " " + text[len(start):]
		case start != "":
		default:
			out.WriteString(strings.Repeat("\n", ends))
			ends = 0
		}
		out.WriteString(text)
		if ended {
			ends++
		}
		if start == "" {
			out.WriteString(strings.Repeat("\n", ends))
			ends = 0
		}
	}
	out.WriteString(strings.Repeat("\n", ends))
	return out.Bytes()
}

// maxCode is the most columns of a line of code. A tab has 4.
const maxCode = 120

// longCode returns the lines of a program that have too many columns. What cannot be broken does not count:
// the inside of back quotes, such as the tags of fields.
func longCode(file string) (found []string, err error) {
	ext := filepath.Ext(file)
	if ext != ".go" && ext != ".js" && ext != ".lua" || strings.HasSuffix(file, "_test.go") ||
		strings.HasPrefix(file, "tests/") {
		return nil, nil
	}
	source, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	code := string(source)
	if ext == ".go" {
		code = backQuoted.ReplaceAllStringFunc(code, func(raw string) string {
			return strings.Repeat("\n", strings.Count(raw, "\n"))
		})
	}
	n := 0
	for line := range strings.Lines(code) {
		n++
		columns := utf8.RuneCountInString(strings.TrimRight(line, "\n")) + 3*strings.Count(line, "\t")
		if columns > maxCode {
			found = append(found, fmt.Sprintf("%s:%d:%d:Columns:Wrap this line: it has %d columns of at most %d.",
				file, n, maxCode+1, columns, maxCode))
		}
	}
	return found, nil
}

var backQuoted = regexp.MustCompile("`[^`]*`")
