package limit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// A client of Redis closes a connection on which it has waited too long, and with it goes the answer, which would say
// whether hits were counted. So the connections of a Limiter's client are wrapped. If one is closed while the
// answer to a marked script is outstanding, it is kept until somebody who knows the mark has read the answer.
//
// This costs nothing as long as answers are in time. To ask in a goroutine of its own, and wait for it or the
// timeout, would: with one client, a decision took 1.5 times as long.

// lateFor is how long an answer is waited for after it was too late for the caller.
const lateFor = 2 * time.Second

// firstMark and the marks that follow it have 16 digits.
const firstMark = 1_000_000_000_000_000

var marks atomic.Int64

// newMark returns an argument for a script, to be its last one. No other script of this process has the same.
func newMark() int64 { return firstMark + marks.Add(1) }

// markLength is that of a mark on the wire.
const markLength = len("$16\r\n1000000000000000\r\n")

// kept are connections with an answer outstanding, by the marks of their scripts.
var kept = struct {
	sync.Mutex
	conns map[int64]net.Conn
}{conns: make(map[int64]net.Conn)}

// takeKept returns the connection that was kept for a mark, or nil.
func takeKept(mark int64) net.Conn {
	kept.Lock()
	defer kept.Unlock()
	conn := kept.conns[mark]
	delete(kept.conns, mark)
	return conn
}

// keepLate makes a client wrap the connections that it opens from now on.
func keepLate(client redis.UniversalClient) {
	switch c := client.(type) {
	case *redis.ClusterClient:
		c.OnNewNode(func(node *redis.Client) { node.AddHook(lateHook{}) })
	default:
		client.AddHook(lateHook{})
	}
}

// lateHook wraps connections. A client without ProcessHook and ProcessPipelineHook does as it would.
type lateHook struct{}

func (lateHook) ProcessHook(redis.ProcessHook) redis.ProcessHook                         { return nil }
func (lateHook) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook { return nil }
func (lateHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		late := &lateConn{Conn: conn}
		if raw, ok := conn.(syscall.Conn); ok { // by which the client looks whether it is alive
			return &lateRawConn{late, raw}, nil
		}
		return late, nil
	}
}

// lateConn is a connection whose answers can be read after it was closed. One goroutine at a time uses it.
type lateConn struct {
	net.Conn
	asked bool // nothing has been read since the last write
	tail  [markLength]byte
	late  atomic.Bool // an answer was waited for too long
}

type lateRawConn struct {
	*lateConn
	raw syscall.Conn
}

func (c *lateRawConn) SyscallConn() (syscall.RawConn, error) { return c.raw.SyscallConn() }

func (c *lateConn) Write(b []byte) (int, error) {
	c.asked = len(b) >= markLength
	if c.asked {
		copy(c.tail[:], b[len(b)-markLength:])
	}
	return c.Conn.Write(b)
}

func (c *lateConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	switch {
	case n > 0:
		c.asked = false
	case c.asked && errors.Is(err, os.ErrDeadlineExceeded):
		c.late.Store(true)
	}
	return n, err
}

// Close keeps the connection if the answer to a marked script is late.
func (c *lateConn) Close() error {
	if c.late.Load() {
		length, digits, _ := strings.Cut(string(c.tail[:]), "\r\n")
		mark, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
		if length == "$16" && err == nil {
			kept.Lock()
			defer kept.Unlock()
			kept.conns[mark] = c.Conn
			return nil
		}
	}
	return c.Conn.Close()
}

// lateError means that the answer of a script about takes is late, and can be waited for.
type lateError struct {
	conn   net.Conn
	takes  []Take
	places []int // of the takes among those of the question; nil: they are all of them, in their order
}

func (e *lateError) Error() string { return "no answer from Redis in time" }
func (e *lateError) Unwrap() error { return os.ErrDeadlineExceeded }

// wait waits for the answer. If it comes, it adds what was counted to states, which are those of the question.
func (e *lateError) wait(states []state) {
	defer e.conn.Close()
	_ = e.conn.SetReadDeadline(time.Now().Add(lateFor))
	reply, err := readReply(bufio.NewReader(e.conn), 3)
	items, ok := reply.([]any)
	if err != nil || !ok {
		return
	}
	part, _, err := parseStates(items, e.takes)
	if err != nil {
		return
	}
	for i := range part {
		place := i
		if e.places != nil {
			place = e.places[i]
		}
		states[place].counted += part[i].counted
		states[place].at = part[i].at
	}
}

// readReply reads whole numbers, and arrays of them.
func readReply(r *bufio.Reader, depth int) (any, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	kind, text := line[0], strings.TrimSpace(line[1:])
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case kind != ':' && kind != '*', err != nil, depth == 0, kind == '*' && (n < 0 || n > 1000):
		return nil, fmt.Errorf("an answer of Redis that is none: %q", line)
	case kind == ':':
		return n, nil
	}
	out := make([]any, n)
	for i := range out {
		out[i], err = readReply(r, depth-1)
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}
