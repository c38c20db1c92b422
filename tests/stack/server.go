package stack

import (
	"net"
	"path/filepath"
	"testing"
	"time"
)

// Server starts a server of any kind. command gives its arguments and environment for the port on 127.0.0.1
// that it has to listen on; it may write configuration files. Server returns when something listens there: no
// request is sent until the test sends one.
func Server(t testing.TB, path string, command func(port int) (args, env []string)) *Process {
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
