package docs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// The examples run one after the other on the same servers, with the default settings.
func TestCollect(t *testing.T) {
	t.Parallel()
	nats, redis := stack.SharedNATS(t), stack.SharedRedis(t)
	stack.Ingest(t, nats, redis)
	collect := stack.Collect(t, nats)
	ran, tokens := 0, 0
	for _, e := range examples(t, "../../docs/collect.md") {
		if e.language == "yaml" {
			file := filepath.Join(t.TempDir(), "tokens.yml")
			require.NoError(t, os.WriteFile(file, []byte(e.code), 0o600))
			stack.Collect(t, nats, "COLLECT_TOKENS_FILE="+file)
			tokens++
		}
		if e.language != "sh" {
			continue // tests/page runs the page's script
		}
		t.Run(fmt.Sprintf("%s at line %d", e.language, e.line), func(t *testing.T) {
			ran++
			if e.prints == nil {
				t.Error("the example does not say what it prints")
			}
			e.run(t, t.TempDir(), "C="+collect.URL())
		})
	}
	if ran < 5 || tokens != 1 {
		t.Errorf("only %d examples were run, and %d files of tokens", ran, tokens)
	}
}
