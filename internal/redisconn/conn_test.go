package redisconn

import (
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/setting"
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
				conn := &conn{Conn: &brokenConn{takes: c.takes}, server: &s}
				for range 2 {
					if _, err := conn.Write([]byte("12345")); err != nil {
						return err
					}
				}
				_, err := conn.Read(nil)
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
