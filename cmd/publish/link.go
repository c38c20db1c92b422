package main

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"

	"tallyroll/internal/boot"
)

// link is the connection to NATS, made while the input is being read: bad
// credentials are said at once, and an input without a hit needs no server.
type link struct {
	done chan struct{} // closed when the attempt is over
	conn *nats.Conn
	err  error
}

// dial begins to connect. When that fails, it calls failed.
func dial(connect func() (*nats.Conn, error), failed func()) *link {
	l := &link{done: make(chan struct{})}
	go func() {
		l.conn, l.err = connect()
		if l.err == nil && l.conn.MaxPayload() < leastPayload {
			l.err = fmt.Errorf("NATS server %s takes messages of %d bytes at most; a hit can need %d: raise its max_payload",
				boot.NATSServer(l.conn), l.conn.MaxPayload(), leastPayload)
		}
		close(l.done)
		if l.err != nil {
			failed()
		}
	}()
	return l
}

// wait waits for the connection.
func (l *link) wait(ctx context.Context) (*nats.Conn, error) {
	select {
	case <-l.done:
		return l.conn, l.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// failure is why there is no connection; nil while it is not known.
func (l *link) failure() error {
	select {
	case <-l.done:
		return l.err
	default:
		return nil
	}
}

// close leaves the server. Nobody waits for an attempt that goes on: a server that
// does not answer would hold up the end of a program that has nothing to publish.
func (l *link) close() {
	select {
	case <-l.done:
		if l.conn != nil {
			l.conn.Close()
		}
	default:
	}
}
