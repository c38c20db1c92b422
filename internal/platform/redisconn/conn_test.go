package redisconn

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/platform/setting"
)

// brokenConn fails every write after so many bytes, and every read.
type brokenConn struct {
	net.Conn
	takes int
}

func (c *brokenConn) Write(b []byte) (int, error) {
	n := min(c.takes, len(b))
	c.takes -= n
	if n < len(b) {
		return n, syscall.EPIPE
	}
	return n, nil
}

func (c *brokenConn) Read([]byte) (int, error) { return 0, syscall.ECONNRESET }

// A command of which nothing was written has not been executed, and is sent again whatever it is. One of
// which a part was written may be a pipeline whose first commands were executed.
func TestOnlyWhatWasNotSentIsRepeatedInAnyCase(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		takes int
		want  int // attempts
	}{"nothing was written": {0, 2}, "a part was written": {3, 1}, "one of two writes": {5, 1}, "all was written": {10, 1}} {
		var s server
		for repeatable, want := range map[bool]int{false: c.want, true: 2} {
			attempts := 0
			err := Repeat(t.Context(), repeatable, func() error {
				attempts++
				conn := newConn(&brokenConn{takes: c.takes}, &s, sinceStart())
				for range 2 {
					if _, err := conn.Write([]byte("12345")); err != nil {
						return err
					}
				}
				_, err := conn.Read(make([]byte, 1))
				return err
			})
			require.Error(t, err, name)
			require.Equal(t, want, attempts, "%s, repeatable %v", name, repeatable)
		}
	}
	attempts := 0
	require.Error(t, Repeat(t.Context(), true, func() error {
		attempts++
		return errors.New("connection refused")
	}))
	require.Equal(t, 1, attempts, "Redis does not answer")
}

func TestIdleTimeoutHasBounds(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"": 3 * time.Minute, "1s": time.Second, "24h": 24 * time.Hour, "0s": 0, "-1s": 0, "25h": 0} {
		var settings Settings
		err := setting.Parse(&settings, "REDIS_IDLE_TIMEOUT="+text)
		if want == 0 {
			require.ErrorContains(t, err, "REDIS_IDLE_TIMEOUT", text)
			require.ErrorContains(t, err, "a duration from 1s to 24h0m0s", text)
			continue
		}
		require.NoError(t, err, text)
		require.Equal(t, want, settings.Options().ConnMaxIdleTime, text)
		require.Equal(t, want, settings.Options().Cluster().ConnMaxIdleTime, text)
		require.Equal(t, want, settings.Options().Failover().ConnMaxIdleTime, text)
	}
}

// The reply about the role is taken out of what the server sends, however it is cut into pieces, and nothing
// else is.
func TestTheRoleIsReadOutOfTheReplies(t *testing.T) {
	t.Parallel()
	const master = "*14\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n$5\r\nproto\r\n:2\r\n$2\r\nid\r\n:4\r\n" +
		"$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n"
	for name, c := range map[string]struct{ reply, role string }{
		"a master":         {master + "*0\r\n", "master"},
		"a replica":        {strings.Replace(master, "$6\r\nmaster", "$7\r\nreplica", 1) + "*0\r\n", "replica"},
		"with modules":     {master + "*1\r\n*6\r\n$4\r\nname\r\n$2\r\nbf\r\n$3\r\nver\r\n:20805\r\n$4\r\nargs\r\n*-1\r\n", "master"},
		"null, and no end": {"*4\r\n$4\r\nzone\r\n$-1\r\n$4\r\nname\r\n$6\r\nro\r\nle\r\n", ""},
		"a Sentinel":       {"*2\r\n$4\r\nmode\r\n$8\r\nsentinel\r\n", ""},
		"refused":          {"-ERR unknown command 'HELLO'\r\n", ""},
		"unexpected":       {"+OK\r\n", ""},
		"an empty line":    {"\n", ""},
	} {
		const next = "*2\r\n$4\r\nrole\r\n$7\r\nreplica\r\n"
		for _, pieces := range []func(io.Reader) io.Reader{iotest.OneByteReader, iotest.HalfReader, iotest.DataErrReader} {
			replies := bufio.NewReaderSize(pieces(strings.NewReader(c.reply+next)), roleBuffer)
			role, err := parseRole(replies)
			require.NoError(t, err, name)
			require.Equal(t, c.role, role, name)
			rest, err := io.ReadAll(replies)
			require.NoError(t, err, name)
			require.Equal(t, next, string(rest), name)
		}
		for end := range len(c.reply) {
			_, err := parseRole(bufio.NewReader(strings.NewReader(c.reply[:end])))
			require.Error(t, err, "%s, cut after %d bytes", name, end)
		}
	}
}

// The late reply to the name of a connection is never taken for that of a command.
func TestLateReplyToANameClosesTheConnection(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	go func() {
		for conn, err := listener.Accept(); err == nil; conn, err = listener.Accept() {
			go func() {
				defer conn.Close()
				buffer := make([]byte, 1024)
				for n, err := conn.Read(buffer); err == nil; n, err = conn.Read(buffer) {
					switch command := strings.ToLower(string(buffer[:n])); {
					case strings.Contains(command, "setname"): // the reply to it waits for another command
					case strings.Contains(command, "ping"):
						_, _ = conn.Write([]byte("+OK\r\n+PONG\r\n"))
					default:
						_, _ = conn.Write([]byte("-ERR unknown command\r\n"))
					}
				}
			}()
		}
	}()
	client := redis.NewClient(&redis.Options{Addr: listener.Addr().String(), ReadTimeout: 50 * time.Millisecond,
		OnConnect: setName, MaxRetries: -1, Protocol: 2, DisableIdentity: true})
	defer client.Close()
	require.ErrorIs(t, client.Ping(t.Context()).Err(), os.ErrDeadlineExceeded)
}
