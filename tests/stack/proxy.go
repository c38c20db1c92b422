package stack

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// FindProxy is the path of a web server such as nginx. Debian keeps them where not every user's PATH
// leads. Without one the test is skipped: the end of `make test-machine` says so.
func FindProxy(t testing.TB, name string) string {
	t.Helper()
	for _, candidate := range []string{name, filepath.Join("/usr/sbin", name), filepath.Join("/usr/local/sbin", name)} {
		path, err := exec.LookPath(candidate)
		if err == nil {
			return path
		}
	}
	t.Skipf("SKIPPED: there is no %[1]s here; make %[1]s installs it", name)
	return ""
}
