package compose

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/stretchr/testify/require"
)

// The files are valid, alone and in the combinations that the docs name. What they mount is there.
func TestFiles(t *testing.T) {
	for _, files := range [][]string{
		{"compose.yml"},
		{"compose.yml", "compose.tokens.yml"},
		{"compose.yml", "compose.partitions.yml"},
		{"compose.yml", "compose.partitions.yml", "compose.tokens.yml"},
	} {
		t.Run(strings.Join(files, "+"), func(t *testing.T) {
			var paths []string
			for _, file := range files {
				paths = append(paths, filepath.Join("../..", file))
			}
			options, err := cli.NewProjectOptions(paths, cli.WithProfiles([]string{"*"}), cli.WithEnv([]string{
				"QUERY_TOKENS=a", "COLLECT_TOKENS=compose.yml", "INGEST_PARTITIONS=4",
				"LIMITS_FILE=compose.yml", "WATCH_FILE=compose.tokens.yml", // which are there
			}))
			require.NoError(t, err)
			project, err := options.LoadProject(t.Context())
			require.NoError(t, err)
			mounts := map[string]string{}
			for name, service := range project.Services {
				if service.Image == "" && service.Build == nil {
					t.Errorf("%s has neither an image nor how to build one", name)
				}
				for _, v := range service.Volumes {
					if v.Type != types.VolumeTypeBind {
						continue
					}
					if found, err := filepath.Glob(v.Source); err != nil || len(found) != 1 {
						t.Errorf("%s mounts %s, which is not there", name, v.Source)
					}
					if strings.HasPrefix(v.Target, "/etc/tallyroll/") {
						mounts[name+" "+filepath.Base(v.Target)] = filepath.Base(v.Source)
						if v.Bind != nil && bool(v.Bind.CreateHostPath) {
							t.Errorf("%s would make a folder of a missing %s", name, v.Source)
						}
					}
				}
			}
			want := map[string]string{"query limits.yml": "compose.yml", "rls limits.yml": "compose.yml",
				"watch limits.yml": "compose.yml", "watch watch.yml": "compose.tokens.yml"}
			if slices.Contains(files, "compose.tokens.yml") {
				want["collect tokens.yml"] = "compose.yml"
			}
			require.Equal(t, want, mounts)
		})
	}
}
