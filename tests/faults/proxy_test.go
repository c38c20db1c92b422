package faults_test

import (
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// proxy carries TCP connections to a Redis server and spoils them: in either
// direction, after a random number of bytes, it holds a connection up or
// delivers a part of what it has and cuts.
type proxy struct {
	l       net.Listener
	target  string
	trouble atomic.Bool
	away    atomic.Bool // see cut
	faults  atomic.Int64
	// before is called with every piece that goes to the server, before it is sent; may be nil.
	before func([]byte)

	mu    sync.Mutex
	conns map[net.Conn]struct{} // nil once closed
	wg    sync.WaitGroup
}

func startProxy(t *testing.T, target string, before func([]byte)) *proxy {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{l: l, target: target, before: before, conns: map[net.Conn]struct{}{}}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		_ = l.Close()
		p.mu.Lock()
		for c := range p.conns {
			_ = c.Close()
		}
		p.conns = nil
		p.mu.Unlock()
		p.wg.Wait()
	})
	return p
}

// URL makes it an endpoint in place of Redis.
func (p *proxy) URL() string { return "redis://" + p.l.Addr().String() + "/0" }

func (p *proxy) accept() {
	for {
		client, err := p.l.Accept()
		if err != nil {
			return
		}
		if p.away.Load() {
			_ = client.Close()
			continue
		}
		server, err := net.DialTimeout("tcp4", p.target, time.Second)
		if err != nil {
			_ = client.Close()
			continue
		}
		if !p.keep(client, server) {
			return
		}
		p.wg.Go(func() { p.carry(server, client, 200<<10, p.before) })
		p.wg.Go(func() { p.carry(client, server, 20<<10, nil) }) // replies are shorter
	}
}

// cut ends all connections and takes no more until it is joined.
func (p *proxy) cut() {
	p.away.Store(true)
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

func (p *proxy) join() { p.away.Store(false) }

func (p *proxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		if p.conns == nil {
			_ = c.Close()
			continue
		}
		p.conns[c] = struct{}{}
	}
	return p.conns != nil
}

func (p *proxy) drop(c net.Conn) {
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
	_ = c.Close()
}

// carry copies one direction; trouble comes every mean bytes or so.
func (p *proxy) carry(to, from net.Conn, mean float64, before func([]byte)) {
	defer p.drop(to)
	defer p.drop(from)
	buf := make([]byte, 16<<10)
	left := int(rand.ExpFloat64() * mean)
	for {
		n, err := from.Read(buf)
		piece := buf[:n]
		if before != nil && n > 0 {
			before(piece)
		}
		if left -= n; left <= 0 && p.trouble.Load() {
			p.faults.Add(1)
			switch rand.IntN(4) {
			case 0: // hold up, go on
				time.Sleep(rand.N(200 * time.Millisecond))
			case 1: // cut before this piece
				return
			case 2: // deliver a part, hold up, cut
				_, _ = to.Write(piece[:rand.IntN(n+1)])
				time.Sleep(rand.N(200 * time.Millisecond))
				return
			default: // deliver a part, cut
				_, _ = to.Write(piece[:rand.IntN(n+1)])
				return
			}
			left = int(rand.ExpFloat64() * mean)
		}
		if _, werr := to.Write(piece); werr != nil || err != nil {
			return
		}
	}
}
