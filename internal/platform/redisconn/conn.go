package redisconn

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// conn is a connection to Redis. If one breaks, idle ones that have read nothing since its command began are
// probably gone, too: a balancer drops them without a word, and resets each when it is used.
type conn struct {
	net.Conn
	server   *server
	socket   syscall.Conn // of TCP, below TLS
	begun    atomic.Int64 // when go-redis took it from its pool
	answered atomic.Int64 // when it last read something
	sent     atomic.Bool  // something was written after the last reply
}

// dialer returns a Dialer for go-redis whose pool closes idle connections that are gone. Over TLS, go-redis
// 9.23 (internal/pool/conn_check.go) does not check an idle connection before use: after a restart of Redis,
// each connection of the pool would fail a command.
func dialer(config *tls.Config) func(ctx context.Context, network, addr string) (net.Conn, error) {
	var servers sync.Map // *server by address
	plain := &net.Dialer{Timeout: ioTimeout, KeepAliveConfig: keepAlive}
	dial := plain.DialContext
	if config != nil {
		dial = (&tls.Dialer{NetDialer: plain, Config: config}).DialContext
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		dialed, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		to, _ := servers.LoadOrStore(addr, new(server))
		c := &conn{Conn: dialed, server: to.(*server)}
		if encrypted, ok := dialed.(*tls.Conn); ok {
			dialed = encrypted.NetConn()
		}
		c.socket = dialed.(syscall.Conn) // of every connection of a net.Dialer
		now := sinceStart()
		c.begun.Store(now)
		c.answered.Store(now)
		return c, nil
	}
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
}

// SyscallConn is what go-redis calls before it uses an idle connection. It closes the connection after an
// error, and if the socket is at its end or has bytes to read. Bytes that are no reply, such as a session
// ticket, are rare, because servers send tickets before the first reply. They cost a new connection.
func (c *conn) SyscallConn() (syscall.RawConn, error) {
	if c.answered.Load() < c.server.suspect.Load() {
		return nil, errors.New("another connection to the server broke")
	}
	c.begun.Store(sinceStart())
	return c.socket.SyscallConn()
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		return n, c.failed(err, false)
	}
	now := sinceStart()
	c.answered.Store(now)
	c.server.answered.Store(now)
	c.sent.Store(false)
	return n, nil
}

func (c *conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
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
