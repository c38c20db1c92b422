package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"tallyroll/internal/platform/redisconn"
	"tallyroll/internal/unique"
	"tallyroll/internal/window"
)

// Client is one Redis server, Sentinel's master or a Redis Cluster. It decides where a command goes. On a
// cluster, a shard is a slot on one node. Commands that count, or that must be read in order, go to that
// node's own client, because the cluster's client follows redirects and retries command by command.
type Client struct {
	redis.UniversalClient
	cluster *redis.ClusterClient // the same client; nil if it is not a cluster's client
}

// ServerTimes maps servers' addresses (empty for a single server) to the times of their clocks.
type ServerTimes map[string]time.Time

// Latest returns the latest of the times; zero without servers.
func (t ServerTimes) Latest() (out time.Time) {
	for _, at := range t {
		if at.After(out) {
			out = at
		}
	}
	return out
}

// NewClient returns a client that sends commands over another one, which must not retry: see schema.NewStore.
func NewClient(client redis.UniversalClient) *Client {
	cluster, _ := client.(*redis.ClusterClient)
	return &Client{client, cluster}
}

// IsCluster reports whether the client is a cluster's.
func (c *Client) IsCluster() bool { return c.cluster != nil }

// NodeOf returns the client of the server that holds a key.
func (c *Client) NodeOf(ctx context.Context, key string) (redis.UniversalClient, error) {
	if c.cluster == nil {
		return c.UniversalClient, nil
	}
	return c.cluster.MasterForKey(ctx, key)
}

// RefreshMasters asks a cluster, for at most a second, which node is master of which slots. After a failure,
// a slot may have moved or its master may have died.
func (c *Client) RefreshMasters(ctx context.Context) {
	if c.cluster == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	// ReloadState would return before it has asked, and the next attempt would go to the same node.
	_ = c.cluster.ForEachMaster(ctx, func(context.Context, *redis.Client) error { return nil })
}

// ReadInOrder sends the commands that the functions queue, each with its key as the first argument. What
// first reads from a shard is never newer than what then reads from it, and nothing that either reads is
// newer than what last reads. It may call the functions again; only the commands of the last call have
// replies, with the errors of single keys. It returns the servers' clocks after first and then.
//
// The commands for a node go over one connection, and so to one process with one history. All nodes are asked
// at once, before last. The first attempt follows no redirect, because a redirected cursor would be read
// after the counts that it describes. If a slot is moving, everything is read again in three steps, with
// redirects. That does not notice a fail-over between the first two that loses commits.
func (c *Client) ReadInOrder(ctx context.Context, first, then, last func(redis.Pipeliner)) (times ServerTimes,
	err error) {
	err = redisconn.Repeat(ctx, true, func() (err error) {
		times, err = c.readInOrder(ctx, first, then, last)
		return err
	})
	return times, err
}

func (c *Client) readInOrder(ctx context.Context, first, then, last func(redis.Pipeliner)) (ServerTimes, error) {
	if c.cluster == nil {
		var clock *redis.TimeCmd
		_, err := c.UniversalClient.Pipelined(ctx, func(p redis.Pipeliner) error {
			first(p)
			then(p)
			last(p)
			clock = p.Time(ctx)
			return nil
		})
		return ServerTimes{"": clock.Val()}, err
	}
	times, err := c.readByNode(ctx, first, then)
	if err == nil {
		_, err = c.readByNode(ctx, last)
	}
	if err == nil {
		return times, nil
	}
	c.cluster.ReloadState(ctx)
	if !redirected(err) {
		return nil, err
	}
	for _, queue := range []func(redis.Pipeliner){first, then, last} {
		if err := c.readRedirected(ctx, queue); err != nil {
			return nil, err
		}
	}
	return c.times(ctx)
}

// Read sends the commands that queue adds, which only read. If the connection breaks, it calls queue again.
func (c *Client) Read(ctx context.Context, queue func(redis.Pipeliner) error) (cmds []redis.Cmder, err error) {
	err = redisconn.Repeat(ctx, true, func() (err error) {
		cmds, err = c.Pipelined(ctx, queue)
		return err
	})
	return cmds, err
}

func (c *Client) readByNode(ctx context.Context, steps ...func(redis.Pipeliner)) (ServerTimes, error) {
	queued := c.cluster.Pipeline()
	for _, queue := range steps {
		queue(queued)
	}
	nodes := make(map[*redis.Client]redis.Pipeliner)
	for _, cmd := range queued.Cmds() {
		node, err := c.cluster.MasterForKey(ctx, cmd.Args()[1].(string))
		if err != nil {
			return nil, err
		}
		if nodes[node] == nil {
			nodes[node] = node.Pipeline()
		}
		_ = nodes[node].Process(ctx, cmd) // queues it
	}
	var group errgroup.Group
	clocks := make(map[string]*redis.TimeCmd, len(nodes))
	for node, pipeline := range nodes {
		clocks[node.Options().Addr] = pipeline.Time(ctx)
		group.Go(func() error {
			cmds, err := pipeline.Exec(ctx)
			return cmp.Or(err, refusal(cmds))
		})
	}
	err := group.Wait()
	times := make(ServerTimes, len(clocks))
	for address, clock := range clocks {
		times[address] = clock.Val()
	}
	return times, err
}

// refusal returns the first error with which a node refused to read, whatever the key holds.
func refusal(cmds []redis.Cmder) error {
	for _, cmd := range cmds {
		if raw, ok := cmd.(*redis.RawCmd); ok {
			if err := errorIn(raw.Val()); err != nil && !IsAboutValue(err) {
				return err
			}
		}
	}
	return nil
}

// readRedirected sends the queued commands through the cluster's client, which sees redirects only in replies
// that it parses. So raw commands are sent as parsed ones and get their replies.
func (c *Client) readRedirected(ctx context.Context, queue func(redis.Pipeliner)) error {
	queued := c.cluster.Pipeline()
	queue(queued)
	parsed := make([]redis.Cmder, queued.Len())
	for i, cmd := range queued.Cmds() {
		parsed[i] = redis.NewCmd(ctx, cmd.Args()...)
	}
	_, err := c.cluster.Pipelined(ctx, func(p redis.Pipeliner) error { return p.BatchProcess(ctx, parsed...) })
	for i, cmd := range queued.Cmds() {
		if isSplit(parsed[i].Err()) && cmd.Name() == "pfcount" {
			n, err := c.countUnion(ctx, cmd.Args()[1:])
			if err != nil {
				return err
			}
			cmd.(*redis.RawCmd).SetVal(appendReply(nil, n))
			continue
		}
		said, ok := encodeReply(parsed[i].(*redis.Cmd).Result())
		if !ok {
			return err
		}
		cmd.(*redis.RawCmd).SetVal(said)
	}
	return nil
}

// Now returns the latest of the servers' clocks, in Unix milliseconds.
func (c *Client) Now(ctx context.Context) (int64, error) {
	if c.IsCluster() {
		times, err := c.times(ctx)
		return times.Latest().UnixMilli(), err
	}
	at, err := c.Time(ctx).Result()
	return at.UnixMilli(), err
}

func (c *Client) times(ctx context.Context) (ServerTimes, error) {
	var mu sync.Mutex
	out := make(ServerTimes)
	err := c.cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		at, err := node.Time(ctx).Result()
		mu.Lock()
		defer mu.Unlock()
		out[node.Options().Addr] = at
		return err
	})
	return out, err
}

// redirected reports whether another node has the slot, or some keys of the slot.
func redirected(err error) bool {
	return redis.HasErrorPrefix(err, "MOVED ") || redis.HasErrorPrefix(err, "ASK ") || isSplit(err)
}

// isSplit reports whether no node has all keys of a command, because their slot is moving.
func isSplit(err error) bool { return redis.HasErrorPrefix(err, "TRYAGAIN ") }

// Server is one server of the namespace.
type Server struct {
	redis.Cmdable
	Name string // for messages
}

// Masters returns the servers that hold the namespace: a single one, or a cluster's masters.
func (c *Client) Masters(ctx context.Context) ([]Server, error) {
	if c.cluster == nil {
		return []Server{{c.UniversalClient, "Redis"}}, nil
	}
	var mu sync.Mutex
	var out []Server
	err := c.cluster.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		out = append(out, Server{node, "Redis at " + node.Options().Addr})
		return nil
	})
	slices.SortFunc(out, func(a, b Server) int { return strings.Compare(a.Name, b.Name) })
	return out, err
}

// Servers returns how many servers hold the namespace: a cluster's masters, or one.
func (c *Client) Servers(ctx context.Context) (int, error) {
	masters, err := c.Masters(ctx)
	if err != nil {
		return 0, fmt.Errorf("count the masters: %w", err)
	}
	return max(1, len(masters)), nil
}

// countUnion is PFCOUNT key by key: while a slot moves, keys are on two nodes, and neither has all.
func (c *Client) countUnion(ctx context.Context, keys []any) (int64, error) {
	cells := make([]*redis.StringCmd, len(keys))
	_, err := c.cluster.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, key := range keys {
			cells[i] = p.Get(ctx, key.(string))
		}
		return nil
	})
	var all unique.Sketch
	for i, cell := range cells {
		text, said := cell.Result()
		if errors.Is(said, redis.Nil) {
			continue
		}
		if said != nil {
			return 0, cmp.Or(WrapForeign(keys[i].(string), said), err)
		}
		one, bad := unique.Decode(text)
		if bad != nil {
			return 0, &window.ForeignError{Key: keys[i].(string), Err: bad}
		}
		all.Merge(one)
	}
	return int64(math.Round(all.Estimate())), nil
}
