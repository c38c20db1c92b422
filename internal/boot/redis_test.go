package boot_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/boot"
	"tallyroll/tests/stack"
)

func TestMain(m *testing.M) { stack.Main(m) }

// A command whose reply is lost may have been executed. The library's clients
// send it again by themselves, so that one hit counts up to four times; ours
// must come back with the error.
func TestTheClientNeverRepeatsACommand(t *testing.T) {
	for name, start := range map[string]func(*testing.T) (client *redis.Client, cut *replyCutter){
		"one server": func(t *testing.T) (*redis.Client, *replyCutter) {
			cut := newReplyCutter(t)
			cut.start(t, stack.Redis(t).Addr())
			return stack.ProgramClient(t, "redis://"+cut.addr()+"/0").(*redis.Client), cut
		},
		"node of a cluster": func(t *testing.T) (*redis.Client, *replyCutter) {
			cut := newReplyCutter(t)
			_, port, err := net.SplitHostPort(cut.addr())
			require.NoError(t, err)
			// One master of all slots, which tells clients to come by way of the cutter.
			server := stack.Redis(t, stack.RedisArgs("--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(stack.FreePort(t)),
				"--cluster-announce-ip", "127.0.0.1", "--cluster-announce-port", port))
			cut.start(t, server.Addr())
			require.NoError(t, server.Client().Do(t.Context(), "cluster", "addslotsrange", 0, 16383).Err())
			stack.Eventually(t, "the cluster to be ok", func() (bool, string) {
				info, err := server.Client().ClusterInfo(t.Context()).Result()
				return err == nil && strings.Contains(info, "cluster_state:ok"), info
			})
			node, err := stack.ProgramClient(t, "redis+cluster://"+cut.addr()).(*redis.ClusterClient).MasterForKey(t.Context(), "counts")
			require.NoError(t, err)
			require.Equal(t, cut.addr(), node.Options().Addr)
			return node, cut
		},
	} {
		t.Run(name, func(t *testing.T) {
			client, cut := start(t)
			for field, send := range map[string]func(field string) error{
				"command": func(field string) error { return client.HIncrBy(t.Context(), "counts", field, 1).Err() },
				"pipeline": func(field string) error {
					_, err := client.Pipelined(t.Context(), func(p redis.Pipeliner) error { return p.HIncrBy(t.Context(), "counts", field, 1).Err() })
					return err
				},
				"transaction": func(field string) error {
					return client.Watch(t.Context(), func(tx *redis.Tx) error {
						_, err := tx.TxPipelined(t.Context(), func(p redis.Pipeliner) error { return p.HIncrBy(t.Context(), "counts", field, 1).Err() })
						return err
					}, "cursor")
				},
			} {
				before := cut.replies.Load()
				err := send(field)
				if err == nil {
					t.Errorf("%s: no error, though its reply was lost", field)
				}
				require.EqualValues(t, 1, cut.replies.Load()-before, field)
				if got, err := client.HGet(context.Background(), "counts", field).Int(); err != nil || got != 1 {
					t.Errorf("%s: counted %d times (%v), want once", field, got, err)
				}
			}
		})
	}
}

// replyCutter is in front of a Redis: it carries every HINCRBY to the server,
// waits for the reply, so that it has been executed, and cuts the connection in its place.
type replyCutter struct {
	l       net.Listener
	replies atomic.Int64 // that were cut
}

func newReplyCutter(t *testing.T) *replyCutter {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	return &replyCutter{l: l}
}

func (c *replyCutter) start(t *testing.T, target string) {
	var carrying sync.WaitGroup
	carrying.Go(func() {
		for {
			client, err := c.l.Accept()
			if err != nil {
				return
			}
			carrying.Go(func() { c.carry(client, target) })
		}
	})
	t.Cleanup(func() { // after the clients are closed, which ends every connection
		_ = c.l.Close()
		carrying.Wait()
	})
}

func (c *replyCutter) addr() string { return c.l.Addr().String() }

func (c *replyCutter) carry(client net.Conn, target string) {
	defer client.Close()
	server, err := net.Dial("tcp4", target)
	if err != nil {
		return
	}
	defer server.Close()
	var cut atomic.Bool
	var requests sync.WaitGroup
	requests.Go(func() {
		defer server.Close()
		buf := make([]byte, 16<<10)
		for {
			n, err := client.Read(buf)
			if bytes.Contains(bytes.ToLower(buf[:n]), []byte("hincrby")) {
				cut.Store(true)
			}
			if _, werr := server.Write(buf[:n]); werr != nil || err != nil {
				return
			}
		}
	})
	buf := make([]byte, 16<<10)
	for {
		n, err := server.Read(buf)
		if n > 0 && cut.Load() {
			c.replies.Add(1)
			break
		}
		if _, werr := client.Write(buf[:n]); werr != nil || err != nil {
			break
		}
	}
	_ = client.Close()
	requests.Wait()
}

// Whether a cluster has databases is for the cluster to say: those of Valkey 9 have some, others refuse all but 0.
func TestClusterSaysWhichDatabasesItHas(t *testing.T) {
	t.Parallel()
	cluster := stack.Cluster(t, 0)
	base, query, _ := strings.Cut(cluster.URL(), "?")
	at := func(db string) string { return strings.TrimSuffix(base, "/") + "/" + db + "?" + query }
	if err := boot.WaitForRedis(t.Context(), stack.ProgramClient(t, at("0")), zerolog.Nop()); err != nil {
		t.Errorf("database 0: %v", err)
	}
	err := boot.WaitForRedis(t.Context(), stack.ProgramClient(t, at("1")), zerolog.Nop())
	var usage boot.UsageError
	if !errors.As(err, &usage) || !strings.Contains(err.Error(), "SELECT is not allowed in cluster mode") {
		t.Errorf("database 1: %v", err)
	}
}
