package release

import (
	"os"
	"path/filepath"
	"runtime"
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

func TestZonesSayVersionAndPlace(t *testing.T) {
	unix, mac, other := t.TempDir(), t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(unix, "tzdata.zi"), []byte("# version 2026f\n# redo\n"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(mac, "+VERSION"), []byte("2026e\n"), 0o644))
	for _, c := range []struct {
		want    string
		folders []string
	}{
		{"2026f of " + unix, []string{"", "/none", unix, mac}},
		{"2026e of " + mac, []string{mac, unix}},
		{"unknown of " + other, []string{other, unix}},
		{"unknown, built in by " + runtime.Version(), []string{"", "/none"}},
	} {
		require.Equal(t, c.want, zonesIn(c.folders))
	}
}
