package redisconn_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/platform/redisconn"
	"tallyroll/internal/platform/setting"
	"tallyroll/tests/stack"
)

func TestMain(m *testing.M) { stack.Main(m) }

// A command whose reply is lost may have been executed. The library's clients
// send it again by themselves, so that one hit counts up to four times; ours
// must come back with the error.
func TestLostReplyIsAnErrorAndNoClientRepeatsTheCommand(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"one server", "node of a cluster"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var cut replyCutter
			var client *redis.Client
			if name == "one server" {
				client = stack.ProgramClient(t, stack.SharedRedis(t).URL()).(*redis.Client)
				client.AddHook(&cut)
			} else {
				cluster := stack.ProgramClient(t, stack.Cluster(t, 0).URL()).(*redis.ClusterClient)
				cluster.OnNewNode(func(node *redis.Client) { node.AddHook(&cut) })
				var err error
				client, err = cluster.MasterForKey(t.Context(), "{counts}")
				require.NoError(t, err)
			}
			increment := func(p redis.Cmdable, field string) error {
				return p.HIncrBy(t.Context(), "{counts}", field, 1).Err()
			}
			for field, send := range map[string]func(field string) error{
				"command": func(field string) error { return increment(client, field) },
				"pipeline": func(field string) error {
					_, err := client.Pipelined(t.Context(), func(p redis.Pipeliner) error { return increment(p, field) })
					return err
				},
				"transaction": func(field string) error {
					return client.Watch(t.Context(), func(tx *redis.Tx) error {
						_, err := tx.TxPipelined(t.Context(), func(p redis.Pipeliner) error { return increment(p, field) })
						return err
					}, "cursor{counts}")
				},
			} {
				before := cut.replies.Load()
				require.Error(t, send(field), "%s: its reply was lost", field)
				require.EqualValues(t, 1, cut.replies.Load()-before, field)
				if got, err := client.HGet(t.Context(), "{counts}", field).Int(); err != nil || got != 1 {
					t.Errorf("%s: counted %d times (%v), want once", field, got, err)
				}
			}
		})
	}
}

// replyCutter lets each connection of a client read the first reply to an HINCRBY, so that it has been
// executed, and breaks in its place.
type replyCutter struct{ replies atomic.Int64 }

func (c *replyCutter) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (c *replyCutter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (c *replyCutter) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		return &cutConn{Conn: conn, replies: &c.replies}, err
	}
}

type cutConn struct {
	net.Conn
	replies *atomic.Int64
	cut     bool
}

func (c *cutConn) Write(b []byte) (int, error) {
	c.cut = c.cut || bytes.Contains(bytes.ToLower(b), []byte("hincrby"))
	return c.Conn.Write(b)
}

func (c *cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.cut && err == nil {
		c.replies.Add(1)
		return 0, io.EOF
	}
	return n, err
}

// Whether a cluster has databases is for the cluster to say: those of Valkey 9 may have some (one is their
// default), others refuse all but 0.
func TestDatabaseOfAClusterThatHasNoneIsRefused(t *testing.T) {
	t.Parallel()
	wait := func(cluster *stack.RedisCluster, db string) error {
		base, query, _ := strings.Cut(cluster.URL(), "?")
		client := stack.ProgramClient(t, strings.TrimSuffix(base, "/")+"/"+db+"?"+query)
		return redisconn.Await(t.Context(), client, zerolog.Nop())
	}
	cluster := stack.Cluster(t, 0)
	require.NoError(t, wait(cluster, "0"))
	var usage setting.UsageError
	err := wait(cluster, "1")
	require.ErrorAs(t, err, &usage)
	require.Regexp(t, "SELECT is not allowed in cluster mode|DB index is out of range", err.Error())

	const option = "cluster-databases"
	if cluster.Nodes[0].Client().ConfigGet(t.Context(), option).Val()[option] == "" {
		return
	}
	cluster = stack.Cluster(t, 0, stack.RedisArgs("--"+option, "2"))
	require.NoError(t, wait(cluster, "1"))
	require.ErrorAs(t, wait(cluster, "2"), &usage)
}

// Redis and Valkey report their kind under different names.
func TestAServerOfAnotherKindIsRefused(t *testing.T) {
	t.Parallel()
	var usage setting.UsageError
	for want, server := range map[string]*stack.RedisServer{
		"write redis+cluster://":  stack.Cluster(t, 0).Nodes[0],
		"write redis+sentinel://": stack.Sentinels(t, 0).Sentinels[0],
	} {
		err := redisconn.Await(t.Context(), stack.ProgramClient(t, server.URL()), zerolog.Nop())
		require.ErrorAs(t, err, &usage)
		require.ErrorContains(t, err, want)
	}
}
