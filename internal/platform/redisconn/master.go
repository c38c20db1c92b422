package redisconn

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// A name can lead to another server after a fail-over (a primary endpoint, a Service of Kubernetes), while
// open connections still lead to the old master, which is a replica now. It refuses writes, and answers reads
// with what it has. So a client leaves a server once a reply shows that it is not the master: the connections
// that are open are closed before their next use, and dialed again by the name.

func (s *server) leave() { s.left.Store(sinceStart()) }

// DialHook and the next two make it a hook of go-redis 9.23, which closes a connection itself only if the
// reply READONLY is the first of a pipeline: not below EXECABORT, and never for MASTERDOWN.
func (*servers) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *servers) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		cmd.SetErr(err) // as go-redis does after its hooks
		s.check(cmd)
		return err
	}
}

func (s *servers) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		s.check(cmds...)
		return err
	}
}

func (s *servers) check(cmds ...redis.Cmder) {
	if slices.ContainsFunc(cmds, refusedByReplica) {
		s.Range(func(_, to any) bool {
			to.(*server).leave()
			return true
		})
	}
}

// refusedByReplica reports whether a reply says that the server is not the master. In a script's error, this
// may stand behind other words.
func refusedByReplica(cmd redis.Cmder) bool {
	text := ""
	if raw, ok := cmd.(*redis.RawCmd); ok && bytes.HasPrefix(raw.Val(), []byte("-")) {
		text = string(raw.Val())
	} else if err := cmd.Err(); err != nil {
		text = "-" + err.Error()
	}
	return strings.Contains(text, "-READONLY ") || strings.Contains(text, "-MASTERDOWN ")
}

const (
	// roleEvery is how often a connection that is in use asks for its server's role, because a replica answers
	// reads without an error. The question goes out with a command and costs no round trip.
	roleEvery = 5 * time.Second
	// roleQuestion is HELLO, which every user may send (ROLE and INFO need rights), as go-redis does on each new
	// connection. Without arguments it changes nothing.
	roleQuestion = "*1\r\n$5\r\nHELLO\r\n"
	roleBuffer   = 512 // bytes; a longer read, as go-redis's are, bypasses it
)

// roleCheck is what a connection has asked about its server's role.
type roleCheck struct {
	asked   int64 // of sinceStart
	due     bool
	pending bool // the next reply is not go-redis's
}

// withQuestion returns what to write in place of b, the first bytes since the pool gave the connection out.
func (c *conn) withQuestion(b []byte) []byte {
	if !c.role.due {
		return b
	}
	c.role = roleCheck{asked: sinceStart(), pending: true}
	return slices.Concat([]byte(roleQuestion), b)
}

// readRole reads the reply to the question, if it has not.
func (c *conn) readRole() error {
	if !c.role.pending {
		return nil
	}
	role, err := parseRole(c.replies)
	if role == "replica" {
		c.server.leave()
	}
	c.role.pending = err != nil
	return err
}

// parseRole reads one reply in RESP 2. The role is empty if the reply has none.
func parseRole(r *bufio.Reader) (role string, err error) {
	previous := ""
	for left := 1; left > 0; left-- {
		line, err := r.ReadString('\n')
		if err != nil {
			return "", err
		}
		n, _ := strconv.Atoi(strings.TrimSpace(line[1:]))
		switch line[0] {
		case '*':
			left += max(0, n)
		case '$':
			if n < 0 { // null
				break
			}
			text := make([]byte, n+len("\r\n"))
			if _, err := io.ReadFull(r, text); err != nil {
				return "", err
			}
			if previous == "role" {
				role = string(text[:n])
			}
			previous = string(text[:n])
		}
	}
	return role, nil
}
