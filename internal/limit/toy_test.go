package limit

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// AddPolicy follows the recipe in doc.go for a policy of testdata, as long as a test runs. The test must not
// run in parallel with others.
func AddPolicy(t *testing.T, row Traits) {
	t.Helper()
	text, err := os.ReadFile("testdata/" + string(row.Policy) + ".lua")
	require.NoError(t, err)
	before, scriptsBefore := table, scripts
	table = append(before[:len(before):len(before)], row)
	scripts = newScripts("", giveStep, func(name string) string {
		if name == string(row.Policy) {
			return string(text)
		}
		return source(name)
	})
	t.Cleanup(func() { table, scripts = before, scriptsBefore })
}
