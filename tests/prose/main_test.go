package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func write(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

func TestLongComments(t *testing.T) {
	long := strings.Repeat("x", maxColumns)
	file := write(t, "a.go", "package a\n\n// "+long+"\nvar b = `\n// "+long+"`\n\n/* short\n"+long+"x */\n"+
		"var c = 1 // "+long+"\n// https://example.org/"+long+"\n//go:generate "+long+"\n")
	found, err := longComments(file)
	require.NoError(t, err)
	require.Len(t, found, 2)
	require.Contains(t, found[0], file+":3:")
	require.Contains(t, found[1], file+":8:")
}

func TestLocate(t *testing.T) {
	file := write(t, "a.go", "package a\n\n// One.\n//\n//   - it is told\n//   - two\n")
	const message = ":Tallyroll.Phrases:Write “receives” instead of “is told”."
	require.Equal(t, file+":5:11"+message, locate(file+":7:1"+message))
	require.Equal(t, file+":5:8"+message, locate(file+":5:8"+message))
	require.Equal(t, "no finding", locate("no finding"))
}

func TestList(t *testing.T) {
	t.Chdir("../..")
	files, err := list([]string{"README.md", "CHANGELOG.md", "docs", "tests/prose"})
	require.NoError(t, err)
	require.Contains(t, files, "README.md")
	require.Contains(t, files, "docs/design.md")
	require.Contains(t, files, "tests/prose/main.go")
	require.Contains(t, files, "CHANGELOG.md")
	require.NotContains(t, files, "docs/benchmarks-tables.md")
}
