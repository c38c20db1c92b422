package deploy_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// What is shipped has passed make servers: docs/servers.md has a row without failures for the release of each
// image of NATS and Valkey.
func TestShippedServersHavePassed(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(root(t), "docs/servers.md"))
	require.NoError(t, err)
	images := regexp.MustCompile(`image: (?:nats|valkey/valkey):(\d+\.\d+\.\d+)-alpine`)
	for file, want := range map[string]int{"deploy/compose.yml": 2, "deploy/chart/values.yaml": 2} {
		text, err := os.ReadFile(filepath.Join(root(t), file))
		require.NoError(t, err)
		found := images.FindAllStringSubmatch(string(text), -1)
		require.Len(t, found, want, file)
		for _, image := range found {
			passed := regexp.MustCompile(`(?m)^\| [^|]* \| ` + regexp.QuoteMeta(image[1]) + ` \| [^|]* \| [1-9]\d* \| 0 \|`)
			require.Regexp(t, passed, string(page), "%s: make servers has not passed with %s", file, image[0])
		}
	}
}
