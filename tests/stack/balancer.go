package stack

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Balancer carries TCP connections to a server, as a load balancer or a firewall does, and loses them as
// those do.
type Balancer struct {
	l net.Listener

	mu     sync.Mutex
	target string
	conns  map[*carried]struct{} // nil once closed
	dialed int
	wg     sync.WaitGroup
}

// carried is one connection. The fields below mu are guarded by the balancer's.
type carried struct {
	client, server net.Conn
	forgotten      bool // reset when the client sends
	mute           bool // nothing is carried any more, and nothing is said
	replyCut       bool // reset in place of the next reply
}

// NewBalancer starts one in front of host:port.
func NewBalancer(t testing.TB, target string) *Balancer {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	b := &Balancer{l: l, target: target, conns: make(map[*carried]struct{})}
	b.wg.Go(b.accept)
	t.Cleanup(func() {
		_ = l.Close()
		b.mu.Lock()
		for c := range b.conns {
			c.reset()
		}
		b.conns = nil
		b.mu.Unlock()
		b.wg.Wait()
	})
	return b
}

// Addr is where it listens, host:port.
func (b *Balancer) Addr() string { return b.l.Addr().String() }

// Forget makes it reset each connection that it has when the client next sends something.
func (b *Balancer) Forget() { b.each(func(c *carried) { c.forgotten = true }) }

// Mute makes it carry nothing more on the connections that it has, without ending them.
func (b *Balancer) Mute() { b.each(func(c *carried) { c.mute = true }) }

// CutReply makes it reset each connection that it has in place of its next reply.
func (b *Balancer) CutReply() { b.each(func(c *carried) { c.replyCut = true }) }

// MoveTo makes it carry new connections to another host:port, as a name does after a fail-over. Those that it
// has stay where they are.
func (b *Balancer) MoveTo(target string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.target = target
}

// Dialed returns how many connections clients have opened.
func (b *Balancer) Dialed() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.dialed
}

func (b *Balancer) each(do func(*carried)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.conns {
		do(c)
	}
}

func (b *Balancer) accept() {
	for {
		client, err := b.l.Accept()
		if err != nil {
			return
		}
		b.mu.Lock()
		target := b.target
		b.mu.Unlock()
		server, err := net.Dial("tcp4", target)
		if err != nil {
			_ = client.Close()
			continue
		}
		c := &carried{client: client, server: server}
		b.mu.Lock()
		if b.conns == nil {
			c.reset()
			b.mu.Unlock()
			return
		}
		b.conns[c] = struct{}{}
		b.dialed++
		b.mu.Unlock()
		b.wg.Go(func() { b.carry(c, server, client, func() bool { return c.forgotten }) })
		b.wg.Go(func() { b.carry(c, client, server, func() bool { return c.replyCut }) })
	}
}

// carry copies one direction until a piece comes that lost tells to reset in place of.
func (b *Balancer) carry(c *carried, to, from net.Conn, lost func() bool) {
	buf := make([]byte, 16<<10)
	for {
		n, err := from.Read(buf)
		b.mu.Lock()
		ends, mute := err != nil || lost(), c.mute
		if ends && !mute {
			delete(b.conns, c)
		}
		b.mu.Unlock()
		switch {
		case mute && err == nil:
			continue
		case err == io.EOF:
			_ = to.(*net.TCPConn).CloseWrite()
			_ = to.Close()
			return
		case ends:
			c.reset()
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			_ = from.Close()
			return
		}
	}
}

// reset ends the client's side with a RST.
func (c *carried) reset() {
	_ = c.client.(*net.TCPConn).SetLinger(0)
	_ = c.client.Close()
	_ = c.server.Close()
}
