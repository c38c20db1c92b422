package redisconn_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// A fail-over behind a name leaves the connections to the old master open. Whatever shows that it is not the
// master, only that command fails: each that follows goes to the new one, though the pool was full.
func TestAReplyOfNoMasterClosesAllConnectionsToIt(t *testing.T) {
	t.Parallel()
	pipelined := func(do func(redis.Pipeliner)) func(context.Context, *redis.Client) error {
		return func(ctx context.Context, c *redis.Client) error {
			_, err := c.Pipelined(ctx, func(p redis.Pipeliner) error { do(p); return nil })
			return err
		}
	}
	ctx := t.Context()
	for name, send := range map[string]func(context.Context, *redis.Client) error{
		"a write": func(ctx context.Context, c *redis.Client) error { return c.Incr(ctx, "k").Err() },
		"a write behind a read": pipelined(func(p redis.Pipeliner) {
			p.Time(ctx)
			p.Incr(ctx, "k")
		}),
		"a transaction": func(ctx context.Context, c *redis.Client) error {
			return c.Watch(ctx, func(tx *redis.Tx) error {
				_, err := tx.TxPipelined(ctx, func(p redis.Pipeliner) error { return p.Incr(ctx, "k").Err() })
				return err
			}, "k")
		},
		"a script": func(ctx context.Context, c *redis.Client) error {
			return c.Eval(ctx, "return redis.call('incr', KEYS[1])", []string{"k"}).Err()
		},
		"a script that names the error": func(ctx context.Context, c *redis.Client) error {
			return c.Eval(ctx, "return redis.error_reply('ERR of a script: -' .. redis.pcall('incr', KEYS[1]).err)", []string{"k"}).Err()
		},
		"a read": func(ctx context.Context, c *redis.Client) error { return c.Get(ctx, "k").Err() },
		"a raw read behind another": pipelined(func(p redis.Pipeliner) {
			p.Time(ctx)
			_ = p.Process(ctx, redis.NewRawCmd(ctx, "get", "k"))
		}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			named := stack.RedisByName(t, stack.RedisArgs("--replica-serve-stale-data", "no"))
			client := stack.ProgramClient(t, named.URL()).(*redis.Client)
			pooled := fillPool(t, client, "k")
			_ = send(t.Context(), client) // pipelines have a pool of their own
			named.Demote()
			named.Promote()
			_ = send(t.Context(), client)
			for i := range 2 * pooled {
				require.NoError(t, client.Incr(t.Context(), "k").Err(), "command %d after it", i)
			}
		})
	}
}

// A demoted master without a link to the new one answers reads without an error. That it is a replica shows
// for every user, for a command per connection every few seconds.
func TestReadsLeaveAReplicaThatAnswersThem(t *testing.T) {
	t.Parallel()
	certificate := stack.NewCertificate(t)
	options := []stack.RedisOption{stack.RedisTLS(certificate), stack.RedisArgs("--user", "reader", "on", "nopass", "~*", "+get", "+@connection")}
	for name, over := range map[string]func(*stack.NamedRedis) stack.Endpoint{
		"a user of few rights": func(n *stack.NamedRedis) stack.Endpoint {
			return stack.TLSEndpoint(stack.Certificate{}, "redis://reader:any@"+n.URL()[len("redis://"):])
		},
		"TLS": func(n *stack.NamedRedis) stack.Endpoint { return stack.OverTLS(certificate, n) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			own := options
			if name != "TLS" {
				own = options[1:]
			}
			named := stack.RedisByName(t, own...)
			old := named.Master
			require.NoError(t, old.Client().Set(t.Context(), "k", "old", 0).Err())
			named.Follow()
			client := stack.ProgramClientOf(t, over(named)).(*redis.Client)
			get := func() string {
				t.Helper()
				got, err := client.Get(t.Context(), "k").Result()
				require.NoError(t, err)
				return got
			}
			began, asked := time.Now(), helloes(t, old)
			require.Equal(t, "old", get())
			named.Demote()
			named.Promote()
			require.NoError(t, named.Master.Client().Set(t.Context(), "k", "new", 0).Err())
			stack.Eventually(t, "the new master's value", func() (bool, string) { return get() == "new", "" })
			for range 100 {
				require.Equal(t, "new", get())
			}
			took := time.Since(began)
			require.LessOrEqual(t, helloes(t, old)-asked, 2+int(took/(4*time.Second)), "questions about the role within %v", took)
		})
	}
}

// helloes is how many HELLO a server has had.
func helloes(t *testing.T, server *stack.RedisServer) (calls int) {
	t.Helper()
	info, err := server.Client().InfoMap(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	_, _ = fmt.Sscanf(info["Commandstats"]["cmdstat_hello"], "calls=%d,", &calls)
	return calls
}
