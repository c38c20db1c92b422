package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	codeFile = regexp.MustCompile("`((?:internal|cmd|tests)/[\\w/.-]+\\.\\w+)`")
	codeName = regexp.MustCompile("`([A-Za-z]+(?:\\.[A-Za-z]+)?)`(?: in|\\s*\\()\\s+`((?:internal|cmd)/[\\w/.-]+\\.go)`")
)

// The files that the pages name are there, and declare the functions that are said to be in them.
func TestNamedCodeIsThere(t *testing.T) {
	files, names := 0, 0
	for _, path := range textPages(t) {
		text := strings.Join(strings.Fields(strings.Join(prose(t, path), "\n")), " ")
		for _, m := range codeFile.FindAllStringSubmatch(text, -1) {
			files++
			if _, err := os.Stat(filepath.Join("../..", m[1])); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
		for _, m := range codeName.FindAllStringSubmatch(text, -1) {
			names++
			source, err := os.ReadFile(filepath.Join("../..", m[2]))
			if err != nil {
				continue // said above
			}
			declared := "func " + m[1] + "("
			if typ, method, ok := strings.Cut(m[1], "."); ok {
				declared = `func \(\w+ \*?` + typ + `\) ` + method + `\(`
			} else {
				declared = regexp.QuoteMeta(declared)
			}
			if !regexp.MustCompile(`(?m)^` + declared).Match(source) {
				t.Errorf("%s: %s has no function %s", path, m[2], m[1])
			}
		}
	}
	if files < 20 || names < 10 {
		t.Errorf("only %d files and %d functions were found", files, names)
	}
}
