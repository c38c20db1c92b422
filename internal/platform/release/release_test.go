package release

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRevisionNamesCommitAndDirt(t *testing.T) {
	for want, settings := range map[string][]debug.BuildSetting{
		"":             {{Key: "GOOS", Value: "linux"}, {Key: "vcs.modified", Value: "true"}},
		"0012ab":       {{Key: "vcs.revision", Value: "0012ab"}, {Key: "vcs.modified", Value: "false"}},
		"0012ab+dirty": {{Key: "vcs.revision", Value: "0012ab"}, {Key: "vcs.modified", Value: "true"}},
	} {
		require.Equal(t, want, revisionOf(&debug.BuildInfo{Settings: settings}))
	}
}
