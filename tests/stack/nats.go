package stack

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Endpoint is something that others reach by a URL.
type Endpoint interface{ URL() string }

// NATSEmbedded is a NATS server with JetStream inside the test process: the
// fastest to start. For kills and pauses take [NATSProcess].
type NATSEmbedded struct {
	t    testing.TB
	opts *server.Options
	srv  *server.Server
	clients
}

// NATS starts a NATS server with JetStream inside the test process. Each opt
// may change the server's options before every start.
func NATS(t testing.TB, opts ...func(*server.Options)) *NATSEmbedded {
	t.Helper()
	n := &NATSEmbedded{t: t, opts: &server.Options{
		ServerName: "test-" + rand.Text(),
		Host:       "127.0.0.1",
		Port:       FreePort(t), // rather than a port of the kernel's choice: see FreePort on starting again
		JetStream:  true,
		StoreDir:   t.TempDir(),
		NoSigs:     true,
		NoLog:      true,
	}}
	for _, opt := range opts {
		opt(n.opts)
	}
	n.clients = clients{t, n.URL}
	t.Cleanup(func() {
		if n.srv != nil {
			n.stop()
		}
	})
	n.Start()
	return n
}

// Start starts the server, after the first time on the same port and store.
func (n *NATSEmbedded) Start() {
	n.t.Helper()
	if n.srv != nil {
		n.t.Fatal("start NATS: it runs already")
	}
	opts := n.opts.Clone() // a server completes its options in place
	srv, err := server.NewServer(opts)
	if err != nil {
		n.t.Fatalf("start NATS: %v", err)
	}
	srv.Start()
	n.srv = srv
	if !srv.ReadyForConnections(readyWithin) {
		n.t.Fatalf("start NATS: not ready on %s after %v", n.URL(), readyWithin)
	}
}

// Stop shuts the server down and returns when it has.
func (n *NATSEmbedded) Stop() {
	n.t.Helper()
	if n.srv == nil {
		n.t.Fatal("stop NATS: it is not running")
	}
	n.stop()
}

func (n *NATSEmbedded) stop() {
	n.srv.Shutdown()
	n.srv.WaitForShutdown()
	n.srv = nil
}

// URL is the nats:// address.
func (n *NATSEmbedded) URL() string { return "nats://" + address(n.opts.Port) }

// NATSProc is a nats-server process with JetStream.
type NATSProc struct {
	*Process
	clients
}

// NATSProcess starts nats-server, built from the module's dependency, as a
// process of its own. args are further command line arguments; where they name
// a configuration file (--config), JetStream and its store are that file's.
func NATSProcess(t testing.TB, args ...string) *NATSProc {
	t.Helper()
	store, name := t.TempDir(), "test-"+rand.Text()
	n := &NATSProc{}
	n.Process = newProcess(t, "nats-server", NATSServer(t), func(port int) ([]string, []string) {
		all := []string{"--addr", "127.0.0.1", "--port", strconv.Itoa(port), "--name", name}
		if !slices.Contains(args, "--config") {
			all = append(all, "--jetstream", "--store_dir", store)
		}
		return append(all, args...), nil
	})
	n.clients = clients{t, n.URL}
	n.ready = func() (bool, string) {
		conn, err := nats.Connect(n.URL(), nats.Timeout(time.Second))
		if err != nil {
			return false, err.Error()
		}
		defer conn.Close()
		if got := conn.ConnectedServerName(); got != name {
			return false, fmt.Sprintf("%s is served by %s, not by %s", n.URL(), got, name)
		}
		js, err := jetstream.New(conn)
		if err != nil {
			return false, err.Error()
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, err := js.AccountInfo(ctx); err != nil {
			return false, "JetStream: " + err.Error()
		}
		return true, ""
	}
	n.Start()
	return n
}

// URL is the nats:// address.
func (n *NATSProc) URL() string { return "nats://" + n.Addr() }

// clients makes connections for a test.
type clients struct {
	t   testing.TB
	url func() string
}

// Conn is a new connection, closed when the test ends. It reconnects for ever.
func (c clients) Conn(opts ...nats.Option) *nats.Conn {
	c.t.Helper()
	conn, err := nats.Connect(c.url(), append([]nats.Option{
		nats.MaxReconnects(-1),
		nats.ReconnectWait(50 * time.Millisecond),
		nats.ReconnectJitter(10*time.Millisecond, 10*time.Millisecond),
	}, opts...)...)
	if err != nil {
		c.t.Fatalf("connect to %s: %v", c.url(), err)
	}
	c.t.Cleanup(conn.Close)
	return conn
}

// JetStream is JetStream over a new connection.
func (c clients) JetStream() jetstream.JetStream {
	c.t.Helper()
	js, err := jetstream.New(c.Conn())
	if err != nil {
		c.t.Fatalf("JetStream: %v", err)
	}
	return js
}
