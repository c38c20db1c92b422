package redisconn

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"tallyroll/internal/platform/cause"
)

// conn is a connection to Redis. If one breaks, idle ones that have read nothing since its command began are
// probably gone, too: a balancer drops them without a word, and resets each when it is used.
type conn struct {
	net.Conn
	replies  *bufio.Reader // of Conn
	server   *server
	socket   syscall.Conn // of TCP, below TLS
	dialed   int64
	role     roleCheck
	begun    atomic.Int64 // when go-redis took it from its pool
	answered atomic.Int64 // when it last read something
	sent     atomic.Bool  // something was written after the last reply
}

// servers are those of one client, each a *server by its address.
type servers struct{ sync.Map }

// dialer returns a Dialer for go-redis whose pool closes idle connections that are gone. Over TLS, go-redis
// 9.23 (internal/pool/conn_check.go) does not check an idle connection before use: after a restart of Redis,
// each connection of the pool would fail a command.
func (s *servers) dialer(config *tls.Config) func(ctx context.Context, network, addr string) (net.Conn, error) {
	plain := &net.Dialer{Timeout: ioTimeout, KeepAliveConfig: keepAlive}
	dial := plain.DialContext
	if config != nil {
		dial = (&tls.Dialer{NetDialer: plain, Config: config}).DialContext
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		began := sinceStart()
		dialed, err := dial(ctx, network, addr)
		if err != nil {
			return nil, explainDial(err, addr)
		}
		to, _ := s.LoadOrStore(addr, new(server))
		c := newConn(dialed, to.(*server), began)
		if encrypted, ok := dialed.(*tls.Conn); ok {
			dialed = encrypted.NetConn()
		}
		c.socket = dialed.(syscall.Conn) // of every connection of a net.Dialer
		return c, nil
	}
}

func newConn(dialed net.Conn, to *server, began int64) *conn {
	c := &conn{Conn: dialed, replies: bufio.NewReaderSize(dialed, roleBuffer), server: to, dialed: began}
	now := sinceStart()
	c.role.asked = now
	c.begun.Store(now)
	c.answered.Store(now)
	return c
}

// explainDial returns an error with its cause, if that is known.
func explainDial(err error, addr string) error {
	var notTLS tls.RecordHeaderError
	op, _ := errors.AsType[*net.OpError](err)
	late := errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
	switch {
	case strings.HasPrefix(addr, "?:"): // so a cluster writes a host that it does not know
		return cause.RedisEndpoint.Of(err)
	case errors.As(err, &notTLS), late && (op == nil || op.Op != "dial"):
		return cause.RedisNoTLS.Of(err)
	}
	return err
}

// keepAlive finds that a machine is gone after 45 s, as go-redis's own Dialer does, and keeps a connection
// through a balancer that sees TCP only.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 5 * time.Second, Count: 3}

var start = time.Now()

// sinceStart is a clock that does not fall.
func sinceStart() int64 { return int64(time.Since(start)) }

// server is what the connections of one client to one address have in common. Times are of sinceStart.
type server struct {
	answered atomic.Int64 // when one of them last read something
	suspect  atomic.Int64 // an idle one that has read nothing since is closed before its next use
	left     atomic.Int64 // one that was dialed before is closed before its next use
}

// SyscallConn is what go-redis calls before it uses an idle connection. It closes the connection after an
// error, and if the socket is at its end or has bytes to read. Bytes that are no reply, such as a session
// ticket, are rare, because servers send tickets before the first reply. They cost a new connection.
func (c *conn) SyscallConn() (syscall.RawConn, error) {
	if c.answered.Load() < c.server.suspect.Load() {
		return nil, errors.New("another connection to the server broke")
	}
	if c.dialed < c.server.left.Load() {
		return nil, errors.New("the server is no master any more")
	}
	now := sinceStart()
	c.begun.Store(now)
	c.role.due = now-c.role.asked >= int64(roleEvery)
	return c.socket.SyscallConn()
}

func (c *conn) Read(b []byte) (int, error) {
	if err := c.readRole(); err != nil {
		return 0, c.failed(err, false)
	}
	n, err := c.replies.Read(b)
	if err != nil {
		if c.server.answered.Load() == 0 && c.isPlain() && !errors.Is(err, os.ErrDeadlineExceeded) {
			err = cause.RedisTLS.Of(err)
		}
		return n, c.failed(err, false)
	}
	now := sinceStart()
	c.answered.Store(now)
	c.server.answered.Store(now)
	c.sent.Store(false)
	return n, nil
}

func (c *conn) isPlain() bool {
	_, encrypted := c.Conn.(*tls.Conn)
	return !encrypted
}

func (c *conn) Write(b []byte) (int, error) {
	out := c.withQuestion(b)
	n, err := c.Conn.Write(out)
	n = max(0, n-(len(out)-len(b)))
	if err != nil {
		return n, c.failed(err, n == 0 && !c.sent.Load())
	}
	c.sent.Store(true)
	return n, nil
}

// failed suspects the idle connections. A late reply is no reason to, unless no other connection has had one
// since: then the machine may be gone.
func (c *conn) failed(err error, unsent bool) error {
	begun := c.begun.Load()
	late := errors.Is(err, os.ErrDeadlineExceeded)
	if late && c.server.answered.Load() >= begun {
		return err
	}
	for {
		suspect := c.server.suspect.Load()
		if suspect >= begun || c.server.suspect.CompareAndSwap(suspect, begun) {
			break
		}
	}
	if late {
		return err
	}
	return &lostError{err, unsent}
}

// lostError means that an open connection broke, not that Redis does not answer.
type lostError struct {
	error
	unsent bool // nothing of the command was written, so Redis has not executed it
}

func (e *lostError) Unwrap() error { return e.error }

// Repeat calls try once more if its connection broke. What was sent may have been executed: repeatable says
// that this does not matter. If nothing was sent, it calls try again in any case.
func Repeat(ctx context.Context, repeatable bool, try func() error) error {
	err := try()
	lost, ok := errors.AsType[*lostError](err)
	if !ok || ctx.Err() != nil || !repeatable && !lost.unsent {
		return err
	}
	return try()
}
