package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	codeFile = regexp.MustCompile("`((?:internal|cmd|tests)/[\\w/.-]+\\.\\w+)`")
	testName = regexp.MustCompile(`\bTest[A-Z]\w+`)
	codeName = regexp.MustCompile("`([A-Za-z]+(?:\\.[A-Za-z]+)?)`(?: in|\\s*\\()\\s+`((?:internal|cmd)/[\\w/.-]+\\.go)`")
)

// The files and tests that the pages name exist, and files declare the functions that pages name in them.
func TestNamedCodeIsThere(t *testing.T) {
	files, names, tests := 0, 0, testsOfTheTree(t)
	for _, path := range textPages(t) {
		text := strings.Join(strings.Fields(strings.Join(prose(t, path), "\n")), " ")
		for _, m := range codeFile.FindAllStringSubmatch(text, -1) {
			files++
			if _, err := os.Stat(filepath.Join("../..", m[1])); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
		for _, name := range testName.FindAllString(text, -1) {
			if !tests[name] {
				t.Errorf("%s: there is no %s", path, name)
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

// testsOfTheTree are the names of all tests.
func testsOfTheTree(t *testing.T) map[string]bool {
	t.Helper()
	declared, tests := regexp.MustCompile(`(?m)^func (Test[A-Z]\w*)\(`), map[string]bool{}
	require.NoError(t, filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, m := range declared.FindAllSubmatch(source, -1) {
			tests[string(m[1])] = true
		}
		return err
	}))
	return tests
}
