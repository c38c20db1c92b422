package stack

import (
	"net"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// FindProxy is the path of a web server such as nginx. Debian keeps them where not every user's PATH
// leads. Without one the test is skipped: the end of `make test` says so.
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

// Proxy starts a web server. command gives its arguments and environment for the port on 127.0.0.1 that it has
// to listen on; it may write configuration files. No request is sent until the test sends one.
func Proxy(t testing.TB, path string, command func(port int) (args, env []string)) *Process {
	t.Helper()
	p := newProcess(t, filepath.Base(path), path, command)
	p.ready = func() (bool, string) {
		conn, err := net.DialTimeout("tcp", p.Addr(), time.Second)
		if err != nil {
			return false, err.Error()
		}
		return conn.Close() == nil, ""
	}
	p.Start()
	return p
}
