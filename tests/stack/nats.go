package stack

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// Endpoint is something that others reach by a URL.
type Endpoint interface{ URL() string }

// NATSEmbedded is a NATS server with JetStream inside the test process: the
// fastest to start. For kills and pauses take [NATSProcess].
type NATSEmbedded struct {
	t    testing.TB
	opts *server.Options
	srv  *server.Server
	proc *NATSProc // in place of it if TALLYROLL_NATS_SERVER is set
	clients
}

// NATS starts a NATS server with JetStream inside the test process. Each opt
// may change the server's options before every start. With TALLYROLL_NATS_SERVER it starts
// that one, and skips a test with options, which only the server of go.mod takes.
func NATS(t testing.TB, opts ...func(*server.Options)) *NATSEmbedded {
	t.Helper()
	needsServers(t)
	if os.Getenv("TALLYROLL_NATS_SERVER") != "" {
		if len(opts) > 0 {
			t.Skip("runs only with the NATS of go.mod inside the test process, and TALLYROLL_NATS_SERVER names another one")
		}
		p := NATSProcess(t)
		return &NATSEmbedded{t: t, proc: p, clients: p.clients}
	}
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
	if n.proc != nil {
		n.proc.Start()
		return
	}
	if n.srv != nil {
		n.t.Fatal("start NATS: it runs already")
	}
	Eventually(n.t, "the start of NATS", func() (bool, string) {
		srv, err := server.NewServer(n.opts.Clone()) // a server completes its options in place
		require.NoError(n.t, err, "start NATS")
		var failed fatalLog
		srv.SetLogger(&failed, false, false)
		srv.Start()
		n.srv = srv
		if failed.text == "" {
			require.True(n.t, srv.ReadyForConnections(Hung), "start NATS: not ready on %s after %v", n.URL(), Hung)
			return true, ""
		}
		n.stop()
		// A child that was just forked may still have the socket with which FreePort tried the port.
		require.Contains(n.t, failed.text, "address already in use", "start NATS")
		return false, failed.text
	})
}

// fatalLog keeps why a server could not start. The server's own log would end the test process.
type fatalLog struct{ text string }

func (l *fatalLog) Fatalf(format string, args ...any) { l.text = fmt.Sprintf(format, args...) }
func (l *fatalLog) Errorf(string, ...any)             {}
func (l *fatalLog) Warnf(string, ...any)              {}
func (l *fatalLog) Noticef(string, ...any)            {}
func (l *fatalLog) Debugf(string, ...any)             {}
func (l *fatalLog) Tracef(string, ...any)             {}

// Reload changes options of the running server, as SIGHUP does with the settings in a file.
func (n *NATSEmbedded) Reload(change func(*server.Options)) {
	n.t.Helper()
	change(n.opts)
	require.NoError(n.t, n.srv.ReloadOptions(n.opts.Clone()), "reload NATS")
}

// Stop shuts the server down and returns when it has.
func (n *NATSEmbedded) Stop() {
	n.t.Helper()
	if n.proc != nil {
		n.proc.Stop()
		return
	}
	if n.srv == nil {
		n.t.Fatal("stop NATS: it is not running")
	}
	n.stop()
}

// Empty removes the store of the stopped server.
func (n *NATSEmbedded) Empty() {
	n.t.Helper()
	if n.proc != nil {
		require.NoError(n.t, os.RemoveAll(n.proc.store))
		return
	}
	if n.srv != nil {
		n.t.Fatal("empty the store of NATS: it is running")
	}
	require.NoError(n.t, os.RemoveAll(n.opts.StoreDir))
}

func (n *NATSEmbedded) stop() {
	hung := time.AfterFunc(Hung, func() {
		debug.SetTraceback("all") // what each goroutine waits for
		panic("NATS does not shut down")
	})
	defer hung.Stop()
	n.srv.Shutdown()
	n.srv.WaitForShutdown()
	n.srv = nil
}

// URL is the nats:// address.
func (n *NATSEmbedded) URL() string {
	if n.proc != nil {
		return n.proc.URL()
	}
	return "nats://" + address(n.opts.Port)
}

// NATSProc is a nats-server process with JetStream.
type NATSProc struct {
	*Process
	store string
	clients
}

// NATSProcess starts nats-server, built from the module's dependency, as a
// process of its own. args are further command line arguments; where they name
// a configuration file (--config), JetStream and its store are that file's.
func NATSProcess(t testing.TB, args ...string) *NATSProc {
	t.Helper()
	store, name := t.TempDir(), "test-"+rand.Text()
	n := &NATSProc{store: store}
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
	require.NoErrorf(c.t, err, "connect to %s", c.url())
	c.t.Cleanup(conn.Close)
	return conn
}

// JetStream is JetStream over a new connection.
func (c clients) JetStream() jetstream.JetStream {
	c.t.Helper()
	js, err := jetstream.New(c.Conn())
	require.NoError(c.t, err, "JetStream")
	return js
}

// Backup is a stream as `nats stream backup` keeps it.
type Backup struct {
	Config json.RawMessage `json:"config"`
	State  json.RawMessage `json:"state"`
	chunks [][]byte
}

// BackUp backs up a stream, without its consumers.
func BackUp(t testing.TB, conn *nats.Conn, stream string) (b Backup) {
	t.Helper()
	inbox := conn.NewRespInbox()
	sub, err := conn.SubscribeSync(inbox)
	require.NoError(t, err)
	defer func() { _ = sub.Unsubscribe() }()
	request(t, conn, "$JS.API.STREAM.SNAPSHOT."+stream, fmt.Appendf(nil, `{"deliver_subject":%q,"no_consumers":true}`, inbox), &b)
	for {
		chunk, err := sub.NextMsg(10 * time.Second)
		require.NoErrorf(t, err, "back up %s", stream)
		if len(chunk.Data) == 0 { // the end
			return b
		}
		b.chunks = append(b.chunks, chunk.Data)
		if chunk.Reply != "" { // flow control
			require.NoError(t, chunk.Respond(nil))
		}
	}
}

// Restore makes a stream from a backup.
func (b Backup) Restore(t testing.TB, conn *nats.Conn, stream string) {
	t.Helper()
	body, err := json.Marshal(b)
	require.NoError(t, err)
	var to struct {
		Subject string `json:"deliver_subject"`
	}
	request(t, conn, "$JS.API.STREAM.RESTORE."+stream, body, &to)
	for _, chunk := range append(b.chunks, nil) {
		var reply *nats.Msg
		Eventually(t, "the server to take the backup", func() (bool, string) {
			reply, err = conn.Request(to.Subject, chunk, 10*time.Second)
			return !errors.Is(err, nats.ErrNoResponders), fmt.Sprint(err) // in a cluster, the route may not know the subject yet
		})
		require.NoErrorf(t, err, "restore %s", stream)
		if bytes.Contains(reply.Data, []byte(`"error"`)) {
			t.Fatalf("restore %s: %s", stream, reply.Data)
		}
	}
}

// request asks the API of JetStream.
func request(t testing.TB, conn *nats.Conn, subject string, body []byte, into any) {
	t.Helper()
	reply, err := conn.Request(subject, body, 10*time.Second)
	require.NoErrorf(t, err, "%s", subject)
	if bytes.Contains(reply.Data, []byte(`"error"`)) {
		t.Fatalf("%s: %s", subject, reply.Data)
	}
	require.NoErrorf(t, json.Unmarshal(reply.Data, into), "%s", subject)
}
