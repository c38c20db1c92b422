package stack

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"testing"
)

// Ports are taken from below the range that the kernel gives to outgoing
// connections. Within that range a client could hold a stopped server's port,
// or reconnect to it and, on loopback, connect to itself.
const firstPort, ports = 15000, 17000

// FreePort is a TCP port on 127.0.0.1 that is free now and that no other test
// using this package takes before this one ends, in this process or another:
// the UDP port of the same number is held until then, as the sign that it is taken.
func FreePort(t testing.TB) int {
	t.Helper()
	for range 1000 {
		port := firstPort + rand.IntN(ports)
		sign, err := net.ListenPacket("udp4", address(port))
		if err != nil {
			continue
		}
		l, err := net.Listen("tcp4", address(port))
		if err != nil {
			_ = sign.Close()
			continue
		}
		_ = l.Close()
		t.Cleanup(func() { _ = sign.Close() })
		return port
	}
	t.Fatalf("no free port found in %d-%d", firstPort, firstPort+ports-1)
	return 0
}

func address(port int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

// cleanEnv is what a child process gets of the environment: settings that the
// person who runs the tests has exported must not reach the programs under test.
func cleanEnv() []string {
	var out []string
	for _, key := range []string{"PATH", "HOME", "TMPDIR", "GOCOVERDIR"} {
		if value, ok := os.LookupEnv(key); ok {
			out = append(out, fmt.Sprintf("%s=%s", key, value))
		}
	}
	return out
}
