package collect

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// relay passes bytes to a server and back. While it is deaf, it drops what the server says.
type relay struct {
	net.Listener
	deaf  atomic.Bool
	mu    sync.Mutex
	conns []net.Conn
}

func newRelay(t *testing.T, server string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &relay{Listener: l}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			there, err := net.Dial("tcp", server)
			if err != nil {
				client.Close()
				continue
			}
			r.mu.Lock()
			r.conns = append(r.conns, client, there)
			r.mu.Unlock()
			wg.Go(func() { _, _ = io.Copy(there, client); there.Close() })
			wg.Go(func() {
				defer client.Close()
				buf := make([]byte, 4096)
				for {
					n, err := there.Read(buf)
					if err != nil {
						return
					}
					if r.deaf.Load() {
						continue
					}
					if _, err := client.Write(buf[:n]); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() { l.Close(); r.cut(); wg.Wait() })
	return r
}

// cut breaks all connections.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		c.Close()
	}
	r.conns = nil
}

// A message is stored, its acknowledgement is lost, and the connection breaks: the message is sent again under its
// id, nobody is told that it is not stored, and it counts once.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	server := stack.NATS(t)
	address, err := url.Parse(server.URL())
	require.NoError(t, err)
	between := newRelay(t, address.Host)
	r := newRigOn(t, server, nil, "NATS_URL=nats://"+between.Addr().String())
	var sent sync.WaitGroup
	for round := range 3 {
		between.deaf.Store(true)
		for i := range 8 {
			var headers []string
			if i%2 == 0 {
				headers = []string{keyHeader, fmt.Sprint(round, "-", i)}
			}
			sent.Go(func() { r.stored(fmt.Sprintf(`{"key":"c%d"}`, i), headers...) })
		}
		stack.Eventually(t, "the stream to store all hits, whose answers are lost", func() (bool, string) {
			hits := int64(0)
			for _, n := range r.counts() {
				hits += n
			}
			return hits == int64(8*(round+1)), fmt.Sprint(hits, " hits")
		})
		between.deaf.Store(false)
		between.cut()
		sent.Wait()
	}
	counts := r.counts()
	for i := range 8 {
		if n := counts[fmt.Sprintf("c%d", i)]; n != 3 {
			t.Errorf("c%d counts %d, want 3", i, n)
		}
	}
}
