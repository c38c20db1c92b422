package stack

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// RedisClock makes a client see a Redis whose clock is another one: it changes
// what TIME says, and moves the moments that keys are to expire at so that they do when
// that clock says so.
type RedisClock struct {
	held  atomic.Pointer[time.Time]
	ahead atomic.Int64 // time.Duration
}

// WatchClock puts a clock between a client and its servers. It is right until a test changes it.
func WatchClock(client redis.UniversalClient) *RedisClock {
	c := new(RedisClock)
	client.AddHook(clockHook{c})
	if cluster, ok := client.(*redis.ClusterClient); ok { // commands that go to a node's own client pass that one's hooks
		cluster.Ping(context.Background()) // finds the nodes, none of which is new below
		cluster.OnNewNode(func(node *redis.Client) { node.AddHook(clockHook{c}) })
		_ = cluster.ForEachMaster(context.Background(), func(_ context.Context, node *redis.Client) error {
			node.AddHook(clockHook{c})
			return nil
		})
	}
	return c
}

// Hold lets TIME say one moment for ever; nil lets it go on. Keys expire as they did.
func (c *RedisClock) Hold(at *time.Time) { c.held.Store(at) }

// Ahead sets the clock so far ahead of the true time.
func (c *RedisClock) Ahead(by time.Duration) { c.ahead.Store(int64(by)) }

func (c *RedisClock) before(cmd redis.Cmder) {
	ahead := time.Duration(c.ahead.Load())
	args := cmd.Args()
	if ahead == 0 || len(args) < 3 {
		return
	}
	at := -1
	for i, arg := range args {
		if text, ok := arg.(string); ok && (i == 0 && strings.EqualFold(text, "expireat") || i > 0 && strings.EqualFold(text, "exat")) {
			at = i + 1
		}
	}
	if at == 1 {
		at = 2 // EXPIREAT key seconds
	}
	if at < 0 {
		return
	}
	switch seconds := args[at].(type) {
	case *int64:
		*seconds -= int64(ahead / time.Second)
	case int64:
		args[at] = seconds - int64(ahead/time.Second)
	}
}

func (c *RedisClock) after(cmd redis.Cmder) {
	clock, ok := cmd.(*redis.TimeCmd)
	if !ok || clock.Err() != nil {
		return
	}
	at := clock.Val().Add(time.Duration(c.ahead.Load()))
	if held := c.held.Load(); held != nil {
		at = *held
	}
	clock.SetVal(at)
}

type clockHook struct{ clock *RedisClock }

func (clockHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (h clockHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.clock.before(cmd)
		err := next(ctx, cmd)
		h.clock.after(cmd)
		return err
	}
}

func (h clockHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			h.clock.before(cmd)
		}
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			h.clock.after(cmd)
		}
		return err
	}
}
