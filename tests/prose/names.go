package main

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// tree is what a comment can name: the declarations of all Go files and the headings of all pages.
type tree struct {
	packages map[string]map[string]bool // package name to its names, over all packages of the name
	members  map[string]map[string]bool // type name to its fields and methods, over all packages
	tests    map[string]bool            // tests, benchmarks and fuzz targets
	embeds   map[string]bool            // types whose members are partly those of others
	imports  map[string]bool            // names of imported packages of other modules
	files    []parsed
}

type parsed struct {
	name   string
	set    *token.FileSet
	syntax *ast.File
}

// readTree parses all Go files below a directory.
func readTree(root string) (*tree, error) {
	t := &tree{packages: map[string]map[string]bool{}, members: map[string]map[string]bool{}, tests: map[string]bool{}, embeds: map[string]bool{}, imports: map[string]bool{}}
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && name != root && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "testdata" || entry.Name() == "node_modules") {
			return filepath.SkipDir
		}
		if entry.IsDir() || filepath.Ext(name) != ".go" {
			return nil
		}
		set := token.NewFileSet()
		syntax, err := parser.ParseFile(set, name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		t.add(parsed{filepath.ToSlash(name), set, syntax})
		return nil
	})
	return t, err
}

func put(m map[string]map[string]bool, key, name string) {
	if m[key] == nil {
		m[key] = map[string]bool{}
	}
	m[key][name] = true
}

// add collects the declarations of a file.
func (t *tree) add(file parsed) {
	t.files = append(t.files, file)
	for _, spec := range file.syntax.Imports {
		from := strings.Trim(spec.Path.Value, `"`)
		if strings.HasPrefix(from, "tallyroll/") {
			continue
		}
		base := path.Base(from)
		if majorVersion.MatchString(base) {
			base = path.Base(path.Dir(from))
		}
		if t.imports[strings.TrimPrefix(base, "go-")] = true; spec.Name != nil {
			t.imports[spec.Name.Name] = true
		}
	}
	pkg := strings.TrimSuffix(file.syntax.Name.Name, "_test")
	for _, decl := range file.syntax.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Recv != nil {
				put(t.members, receiver(d), d.Name.Name)
				continue
			}
			put(t.packages, pkg, d.Name.Name)
			if testName.MatchString(d.Name.Name) {
				t.tests[d.Name.Name] = true
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.ValueSpec:
					for _, name := range s.Names {
						put(t.packages, pkg, name.Name)
					}
				case *ast.TypeSpec:
					put(t.packages, pkg, s.Name.Name)
					put(t.members, s.Name.Name, "")
					t.addMembers(s.Name.Name, s.Type)
				}
			}
		}
	}
}

// addMembers collects the fields and methods of a type.
func (t *tree) addMembers(name string, typ ast.Expr) {
	var fields *ast.FieldList
	switch s := typ.(type) {
	case *ast.StructType:
		fields = s.Fields
	case *ast.InterfaceType:
		fields = s.Methods
	default:
		t.embeds[name] = true // its methods may be another type's
		return
	}
	for _, field := range fields.List {
		if len(field.Names) == 0 {
			t.embeds[name] = true
		}
		for _, n := range field.Names {
			put(t.members, name, n.Name)
		}
	}
}

// receiver returns the name of a method's type.
func receiver(d *ast.FuncDecl) string {
	typ := d.Recv.List[0].Type
	for {
		switch x := typ.(type) {
		case *ast.StarExpr:
			typ = x.X
		case *ast.IndexExpr:
			typ = x.X
		case *ast.IndexListExpr:
			typ = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}

var (
	testName = regexp.MustCompile(`^(Test|Benchmark|Fuzz)[A-Z]\w*$`)
	// A module's path may end with its major version.
	majorVersion = regexp.MustCompile(`^v\d+$`)

	testUse  = regexp.MustCompile(`\b(?:Test|Benchmark|Fuzz)[A-Z]\w*\b`)
	memberOf = regexp.MustCompile(`(?:^|[^\w./"'-])([A-Za-z]\w*)\.([A-Z]\w*)\b`)
	privates = regexp.MustCompile(`(?:^|[^\w./"'-])([A-Za-z]\w*)\.([a-z]\w*)\b(?:\(\))?`)
	pageUse  = regexp.MustCompile(`\b((?:docs/[\w/-]+|README|SECURITY|CONTRIBUTING|CHANGELOG|examples/README)\.md)(#[\w-]+)?`)
	fileExts = []string{"go", "md", "sh", "lua", "js", "html", "css", "json", "yml", "yaml", "conf", "txt", "env", "service", "mod", "sum", "acl", "py", "ts", "tsv", "proto", "log", "gz", "rdb", "aof", "com", "org", "io", "dev", "net"}
)

// staleNames returns the comments in files that name what is not declared: a doc comment that begins with
// another name than its declaration's, a member of a package or type, a test, and a page or its heading.
func (t *tree) staleNames(files []string) (found []string, err error) {
	headings := map[string]map[string]bool{}
	for _, file := range t.files {
		if !slices.Contains(files, file.name) {
			continue
		}
		report := func(pos token.Pos, format string, args ...any) {
			at := file.set.Position(pos)
			found = append(found, fmt.Sprintf("%s:%d:%d:Names:%s", file.name, at.Line, at.Column, fmt.Sprintf(format, args...)))
		}
		docs := t.docNames(file, report)
		for _, group := range file.syntax.Comments {
			for _, c := range group.List {
				if strings.HasPrefix(c.Text, "//go:") {
					continue
				}
				text := webAddress.ReplaceAllString(c.Text, "")
				for _, name := range testUse.FindAllString(text, -1) {
					if !t.tests[name] && !docs[name] {
						report(c.Pos(), "There is no %s.", name)
					}
				}
				for _, m := range slices.Concat(memberOf.FindAllStringSubmatch(text, -1), privates.FindAllStringSubmatch(text, -1)) {
					if t.missing(m[1], m[2]) {
						report(c.Pos(), "There is no %s.%s.", m[1], m[2])
					}
				}
				for _, m := range pageUse.FindAllStringSubmatch(text, -1) {
					why, err := pageProblem(m[1], m[2], headings)
					if err != nil {
						return nil, err
					}
					if why != "" {
						report(c.Pos(), "%s", why)
					}
				}
			}
		}
	}
	return found, nil
}

// missing reports whether a package or type of the tree, and of no other module, lacks a name. hits.a and
// orders.a are subjects.
func (t *tree) missing(of, name string) bool {
	if slices.Contains(fileExts, name) || t.imports[of] || of == "hits" || of == "orders" {
		return false
	}
	if members, ok := t.members[of]; ok && !t.embeds[of] {
		return !members[name] && !t.packages[of][name]
	}
	if t.embeds[of] {
		return false
	}
	// A package's name is also a word: only what is exported is meant to be one.
	names, ok := t.packages[of]
	return ok && of != "main" && unicode.IsUpper(rune(name[0])) && !names[name]
}

// docNames reports doc comments that begin with another name: a first word that looks like a name, or names
// another declaration, must be the declared one. Tests are exempt: their comments are sentences.
func (t *tree) docNames(file parsed, report func(token.Pos, string, ...any)) map[string]bool {
	declared := map[string]bool{}
	check := func(doc *ast.CommentGroup, name string) {
		declared[name] = true
		if doc == nil || name == "init" || testName.MatchString(name) { // of tests, comments are sentences
			return
		}
		words := strings.Fields(doc.Text())
		if len(words) < 2 {
			return
		}
		first := strings.TrimRight(words[0], ",:;'")
		if first == name || first == name+"'s" || strings.HasPrefix(first, name+"(") || strings.HasPrefix(first, name+",") {
			return
		}
		isDeclared := t.packages[file.syntax.Name.Name][first]
		if isName(first) && (isVerb(words[1]) || isDeclared) || isDeclared && isVerb(words[1]) {
			report(doc.Pos(), "This comment is about %s, and begins with %s.", name, first)
		}
	}
	for _, decl := range file.syntax.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			check(d.Doc, d.Name.Name)
		case *ast.GenDecl:
			if d.Tok != token.TYPE {
				continue
			}
			for _, spec := range d.Specs {
				s := spec.(*ast.TypeSpec)
				check(s.Doc, s.Name.Name)
				if !d.Lparen.IsValid() {
					check(d.Doc, s.Name.Name)
				}
			}
		}
	}
	return declared
}

// isName reports whether a word is written as only names are: with a capital inside, or in lower case at the
// beginning of a sentence.
func isName(word string) bool {
	for i, r := range word {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '_' {
			return false
		}
		if i > 0 && unicode.IsUpper(r) && strings.ToUpper(word) != word {
			return true
		}
	}
	return unicode.IsLower(rune(word[0]))
}

// isVerb reports whether a word can follow a declaration's name in its doc comment.
func isVerb(word string) bool {
	return slices.Contains([]string{"is", "are", "has", "have", "and", "holds"}, word) || len(word) > 3 && strings.HasSuffix(word, "s")
}

// pageProblem returns why a page or its heading is not there.
func pageProblem(page, anchor string, headings map[string]map[string]bool) (why string, err error) {
	if headings[page] == nil {
		text, err := os.ReadFile(page)
		if errors.Is(err, fs.ErrNotExist) {
			return "There is no page " + page + ".", nil
		}
		if err != nil {
			return "", err
		}
		headings[page] = map[string]bool{}
		for line := range bytes.Lines(text) {
			if bytes.HasPrefix(line, []byte("#")) {
				headings[page]["#"+slug(string(line))] = true
			}
		}
	}
	if anchor != "" && !headings[page][anchor] {
		return page + " has no heading " + anchor + ".", nil
	}
	return "", nil
}

var headingMarkup = regexp.MustCompile(`\]\([^)]*\)`)

// slug is the anchor that GitHub gives to a heading.
func slug(heading string) string {
	heading = headingMarkup.ReplaceAllString(strings.TrimSpace(strings.TrimLeft(heading, "#")), "]")
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
