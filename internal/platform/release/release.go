// Package release has the release of Tallyroll that a binary was built from, and that of its time zones.
package release

import (
	"bytes"
	"cmp"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
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

// zones is set by the linker for releases, with the version of the time zones that deploy/tools/zones has
// embedded: -X tallyroll/internal/platform/release.zones=2026f
var zones string

// zoneFolders are where time.LoadLocation looks for a zone, before those embedded.
var zoneFolders = []string{os.Getenv("ZONEINFO"), "/usr/share/zoneinfo", "/usr/share/lib/zoneinfo",
	"/usr/lib/locale/TZ", "/etc/zoneinfo"}

// Zones returns the version of the IANA time zones in use and where they are, such as "2026f of
// /usr/share/zoneinfo"; unknown if they have none.
func Zones() string { return zonesIn(zoneFolders) }

func zonesIn(folders []string) string {
	for _, folder := range folders {
		if _, err := os.Stat(folder); err != nil {
			continue
		}
		version := "unknown"
		for _, file := range []string{"tzdata.zi", "+VERSION"} { // +VERSION is that of macOS
			if text, err := os.ReadFile(filepath.Join(folder, file)); err == nil {
				line, _, _ := bytes.Cut(text, []byte("\n"))
				version = strings.TrimPrefix(string(line), "# version ")
				break
			}
		}
		return version + " of " + folder
	}
	return cmp.Or(zones, "unknown") + ", built in by " + runtime.Version()
}
