package redisconn_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/redisconn"
	"tallyroll/tests/stack"
)

// fillPool has a client open as many connections as it may to the servers of the keys, and leaves them idle.
func fillPool(t *testing.T, client redis.UniversalClient, keys ...string) (pooled int) {
	t.Helper()
	nodes := map[*redis.Client]bool{}
	for _, key := range keys {
		switch c := client.(type) {
		case *redis.ClusterClient:
			node, err := c.MasterForKey(t.Context(), key)
			require.NoError(t, err)
			nodes[node] = true
		case *redis.Client:
			nodes[c] = true
		}
	}
	for node := range nodes {
		var open []*redis.Conn
		pooled = node.Options().PoolSize
		for range pooled {
			conn := node.Conn()
			require.NoError(t, conn.Ping(t.Context()).Err())
			open = append(open, conn)
		}
		for _, conn := range open {
			require.NoError(t, conn.Close()) // back to the pool
		}
		require.GreaterOrEqual(t, int(node.PoolStats().IdleConns), pooled)
	}
	return pooled
}

// Redis is restarted while no command is under way. Nothing of the pool works any more, and no command fails:
// without TLS because go-redis checks each connection, and over TLS because this package lets it.
func TestNoCommandFailsAfterARestartOfRedis(t *testing.T) {
	t.Parallel()
	certificate := stack.NewCertificate(t)
	tls := stack.RedisTLS(certificate)
	type started struct {
		redis   stack.Endpoint
		restart []*stack.RedisServer
	}
	for name, start := range map[string]func(t *testing.T) started{
		"one server": func(t *testing.T) started {
			s := stack.Redis(t, tls)
			return started{s, []*stack.RedisServer{s}}
		},
		"a cluster": func(t *testing.T) started {
			c := stack.Cluster(t, 0, tls)
			return started{c, c.Nodes[:1]}
		},
		"Sentinels": func(t *testing.T) started {
			s := stack.Sentinels(t, 0, tls)
			return started{s, s.Servers}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			keys := []string{"{a}", "{b}", "{c}", "{d}"} // on all nodes of a cluster
			for _, redis := range []stack.Endpoint{s.redis, stack.OverTLS(certificate, s.redis)} {
				if name == "Sentinels" && redis == s.redis {
					continue // they name the master's TLS port
				}
				client := stack.ProgramClientOf(t, redis)
				stack.Eventually(t, "Redis to answer", func() (bool, string) {
					err := client.Get(t.Context(), "{a}").Err()
					return err == nil || errors.Is(err, redisNil), fmt.Sprint(err)
				})
				pooled := fillPool(t, client, keys...)
				for _, server := range s.restart {
					server.Kill()
					server.Start()
				}
				awaitFresh(t, redis, keys)
				for i := range 2 * pooled {
					for _, key := range keys {
						require.NoError(t, client.Incr(t.Context(), key).Err(), "%s, command %d", redis.URL(), i)
					}
				}
			}
		})
	}
}

const redisNil = redis.Nil // where a variable hides the package

// awaitFresh waits until a new client gets an answer about each key.
func awaitFresh(t *testing.T, redis stack.Endpoint, keys []string) {
	t.Helper()
	stack.Eventually(t, "Redis to answer a new client", func() (bool, string) {
		client := stack.ProgramClientOf(t, redis)
		for _, key := range keys {
			if err := client.Exists(t.Context(), key).Err(); err != nil {
				return false, err.Error()
			}
		}
		return true, ""
	})
}

// A balancer has forgotten the connections that were idle for long, and resets each when it is used, or says
// nothing. No check can see that. The first command shows it, and the others are dropped with it. A read is
// repeated, and so is a command that was not sent.
func TestConnectionsThatABalancerForgotFailOneCommand(t *testing.T) {
	t.Parallel()
	certificate := stack.NewCertificate(t)
	server := stack.Redis(t, stack.RedisTLS(certificate))
	for _, tls := range []bool{false, true} {
		for name, lose := range map[string]func(*stack.Balancer){"reset": (*stack.Balancer).Forget, "mute": (*stack.Balancer).Mute} {
			for _, repeat := range []bool{false, true} {
				t.Run(fmt.Sprintf("TLS %v, %s, repeated %v", tls, name, repeat), func(t *testing.T) {
					t.Parallel()
					var balancer *stack.Balancer
					var redis stack.Endpoint
					if tls {
						balancer = stack.NewBalancer(t, server.TLSAddr())
						redis = stack.TLSEndpoint(certificate, "rediss://"+balancer.Addr()+"/0")
					} else {
						balancer = stack.NewBalancer(t, server.Addr())
						redis = stack.TLSEndpoint(stack.Certificate{}, "redis://"+balancer.Addr()+"/0")
					}
					client := stack.ProgramClientOf(t, redis)
					pooled := fillPool(t, client, "a")
					lose(balancer)
					before, failed := balancer.Dialed(), 0
					for range 2 * pooled {
						ctx, cancel := context.WithTimeout(t.Context(), time.Second)
						if redisconn.Repeat(ctx, repeat, func() error { return client.Ping(ctx).Err() }) != nil {
							failed++
						}
						cancel()
					}
					want := 1
					if repeat && name == "reset" {
						want = 0
					}
					require.Equal(t, want, failed, "commands failed")
					require.Equal(t, 1, balancer.Dialed()-before, "new connections, because each command came after the one before")
				})
			}
		}
	}
}

// One slow command is no reason to drop the other connections.
func TestALateReplyDropsNoOtherConnection(t *testing.T) {
	t.Parallel()
	server := stack.Redis(t)
	balancer := stack.NewBalancer(t, server.Addr())
	client := stack.ProgramClient(t, "redis://"+balancer.Addr()+"/0").(*redis.Client)
	fillPool(t, client, "a")
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	var waiting sync.WaitGroup
	begun := make(chan struct{})
	waiting.Go(func() {
		conn := client.Conn()
		defer conn.Close()
		_ = conn.Ping(ctx).Err()
		close(begun)
		require.ErrorIs(t, conn.BLPop(ctx, time.Minute, "never").Err(), os.ErrDeadlineExceeded)
	})
	<-begun
	for ctx.Err() == nil {
		require.NoError(t, client.Ping(t.Context()).Err())
	}
	waiting.Wait()
	before := balancer.Dialed()
	fillPool(t, client, "a")
	require.LessOrEqual(t, balancer.Dialed()-before, 1, "new connections")
}
