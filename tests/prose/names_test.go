package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const planted = `package cell

import "github.com/redis/go-redis/v9"

// Store keeps Cell.At and redis.Nil; see TestStore, docs/design.md#one-hit and cell.Open. Subjects: hits.a.
type Store struct{ embedded }

// Cell has no At2: the sentence begins with the name.
type Cell struct{ At int }

// A Reader reads.
type Reader struct{ redis redis.Client }

// affordable returns less.
func checkCost() {}

// Close ends it (Cell.Until, cell.Shut, Reader.close).
func (r *Reader) Close() {}

// Open is measured by BenchmarkNone; TestStore is there. See docs/gone.md and docs/design.md#none.
func Open() {}

// Open is not this one's name.
func other() {}

// rates and the like, which no declaration has.
const (
	one = 1
	// Every word may begin here.
	two = 2
)
`

// The check finds one comment of each kind, and no other.
func TestStaleNames(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{
		"cell/cell.go":      planted,
		"cell/cell_test.go": "package cell_test\n\n// as_of and sentences may begin the comment of a test.\nfunc TestStore() {}\n",
		"docs/design.md":    "# Design\n\n## `One` [hit](hit.md)\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o700))
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	}
	named, err := readTree(".")
	require.NoError(t, err)
	found, err := named.staleNames([]string{"cell/cell.go", "cell/cell_test.go"})
	require.NoError(t, err)
	want := []string{
		"14:1:Names:This comment is about checkCost, and begins with affordable.",
		"23:1:Names:This comment is about other, and begins with Open.",
		"17:1:Names:There is no Cell.Until.",
		"17:1:Names:There is no cell.Shut.",
		"17:1:Names:There is no Reader.close.",
		"20:1:Names:There is no BenchmarkNone.",
		"20:1:Names:There is no page docs/gone.md.",
		"20:1:Names:docs/design.md has no heading #none.",
	}
	for i := range want {
		want[i] = "cell/cell.go:" + want[i]
	}
	require.ElementsMatch(t, want, found, strings.Join(found, "\n"))
}
