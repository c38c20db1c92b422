// Package release has the release of Tallyroll that a binary was built from.
package release

import (
	"cmp"
	"runtime/debug"
)

// version is set by the linker for releases: -X tallyroll/internal/platform/release.version=v1.2.3
var version string

// Version is the release, or else the revision.
func Version() string {
	if version != "" {
		return version
	}
	if _, ok := debug.ReadBuildInfo(); !ok {
		return "unknown"
	}
	return cmp.Or(Revision(), "development")
}

// revision is set by the linker for builds outside of a repository:
// -X tallyroll/internal/platform/release.revision=…
var revision string

// Revision is the commit that the binary was built from, with +dirty if there were other changes; "" if it
// was not built from a repository.
func Revision() string {
	info, ok := debug.ReadBuildInfo()
	if revision != "" || !ok {
		return revision
	}
	return revisionOf(info)
}

func revisionOf(info *debug.BuildInfo) string {
	commit, dirty := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+dirty"
		}
	}
	if commit == "" {
		return ""
	}
	return commit + dirty
}
