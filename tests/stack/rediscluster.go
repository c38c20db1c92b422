package stack

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Masters is how many masters a [RedisCluster] has, each with a third of the slots.
const Masters = 3

const slots = 16384 // of every cluster

// RedisCluster is a Redis Cluster of redis-server processes. Kill and start its
// nodes as they are; who is master of what changes with that.
type RedisCluster struct {
	Nodes  []*RedisServer
	t      testing.TB
	client func() *redis.ClusterClient
}

// Cluster starts a cluster with the given number of replicas for each master.
// A master that does not answer for 2 s is replaced by a replica. Without
// replicas nothing can replace it, so the nodes wait longer: on a busy machine
// a node can be late, and then all of them would answer CLUSTERDOWN.
func Cluster(t testing.TB, replicas int, opts ...RedisOption) *RedisCluster {
	t.Helper()
	c := &RedisCluster{t: t}
	ctx, cancel := context.WithTimeout(context.Background(), Hung)
	defer cancel()
	timeout := Hung
	if replicas > 0 {
		timeout = 2 * time.Second
	}
	bus := make([]int, Masters*(1+replicas))
	for i := range bus {
		bus[i] = FreePort(t)
		c.Nodes = append(c.Nodes, Redis(t, append(slices.Clone(opts), RedisArgs(
			"--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(bus[i]),
			"--cluster-node-timeout", strconv.FormatInt(timeout.Milliseconds(), 10), "--repl-diskless-sync-delay", "0"))...))
	}
	do := func(node *RedisServer, args ...any) {
		t.Helper()
		require.NoErrorf(t, node.Client().Do(ctx, append([]any{"cluster"}, args...)...).Err(), "cluster %v", args)
	}
	for i, node := range c.Nodes {
		do(node, "set-config-epoch", i+1)
		do(node, "meet", "127.0.0.1", c.Nodes[0].Port(), bus[0])
		if i < Masters {
			do(node, "addslotsrange", i*slots/Masters, (i+1)*slots/Masters-1)
		}
	}
	Eventually(t, "the nodes to know each other", c.met)
	for i, node := range c.Nodes[Masters:] {
		do(node, "replicate", c.id(ctx, c.Nodes[i%Masters]))
	}
	c.client = sync.OnceValue(func() *redis.ClusterClient {
		client := redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: c.addrs(), ContextTimeoutEnabled: true, ClusterStateReloadInterval: time.Second,
			DialTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second,
		})
		t.Cleanup(func() { _ = client.Close() })
		return client
	})
	c.WaitOK()
	return c
}

func (c *RedisCluster) addrs() []string {
	var out []string
	for _, node := range c.Nodes {
		out = append(out, node.Addr())
	}
	return out
}

// URL is the redis+cluster:// address of all nodes.
func (c *RedisCluster) URL() string {
	addrs := c.addrs()
	return "redis+cluster://" + addrs[0] + "?addr=" + strings.Join(addrs[1:], "&addr=")
}

// Client is the test's own client, closed when the test ends. It follows
// redirects, and for that it may repeat a command.
func (c *RedisCluster) Client() *redis.ClusterClient { return c.client() }

func (c *RedisCluster) id(ctx context.Context, node *RedisServer) string {
	c.t.Helper()
	id, err := node.Client().Do(ctx, "cluster", "myid").Text()
	require.NoError(c.t, err, "cluster myid")
	return id
}

func (c *RedisCluster) met() (bool, string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, node := range c.Nodes {
		info, err := node.Client().ClusterInfo(ctx).Result()
		if err != nil || !strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d\r", len(c.Nodes))) {
			return false, fmt.Sprintf("%s: %v %s", node.Addr(), err, info)
		}
	}
	return true, ""
}

// WaitOK waits until all nodes that run agree on a master that runs for every
// slot, and the replicas among them have a master's data.
func (c *RedisCluster) WaitOK() {
	c.t.Helper()
	Eventually(c.t, "the cluster to be ok", c.ok)
}

func (c *RedisCluster) ok() (bool, string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	agreed := ""
	for _, node := range c.Nodes {
		if !node.Running() {
			continue
		}
		info, err := node.Client().ClusterInfo(ctx).Result()
		if err != nil || !strings.Contains(info, "cluster_state:ok") {
			return false, fmt.Sprintf("%s: %v %s", node.Addr(), err, info)
		}
		ranges, err := c.ranges(ctx, node)
		if err != nil {
			return false, err.Error()
		}
		view := ""
		for _, r := range ranges {
			if r.master == nil || !r.master.Running() {
				return false, fmt.Sprintf("%s: slots %d-%d are still at a node that is gone", node.Addr(), r.Start, r.End)
			}
			view += fmt.Sprintf("%d-%d at %s; ", r.Start, r.End, r.master.Addr())
		}
		if agreed == "" {
			agreed = view
		}
		if view != agreed {
			return false, "the nodes do not agree: " + agreed + "and " + view
		}
		if ok, state := node.replicates(ctx); !ok {
			return false, state
		}
	}
	return true, ""
}

// replicates reports whether a server, where it is a replica, has its master's data.
func (s *RedisServer) replicates(ctx context.Context) (bool, string) {
	info, err := s.Client().Info(ctx, "replication").Result()
	if err != nil {
		return false, err.Error()
	}
	if strings.Contains(info, "role:slave") && !strings.Contains(info, "master_link_status:up") {
		return false, s.Addr() + " has no link to its master: " + info
	}
	return true, ""
}

// slotRange is a range of slots and who has it.
type slotRange struct {
	redis.SlotRange
	master *RedisServer
}

// ranges are all slots as one node sees them, in order.
func (c *RedisCluster) ranges(ctx context.Context, node *RedisServer) ([]slotRange, error) {
	shards, err := node.Client().ClusterShards(ctx).Result()
	if err != nil {
		return nil, fmt.Errorf("shards as %s sees them: %w", node.Addr(), err)
	}
	var out []slotRange
	for _, shard := range shards {
		var master *RedisServer
		for _, member := range shard.Nodes {
			if member.Role == "master" {
				master = c.at(member.Port)
			}
		}
		for _, slots := range shard.Slots {
			out = append(out, slotRange{slots, master})
		}
	}
	slices.SortFunc(out, func(a, b slotRange) int { return cmp.Compare(a.Start, b.Start) })
	return out, nil
}

// at is the node on a port.
func (c *RedisCluster) at(port int64) *RedisServer {
	for _, node := range c.Nodes {
		if int64(node.Port()) == port {
			return node
		}
	}
	return nil
}

// MasterOf is the master of a key's slot, as all nodes agree.
func (c *RedisCluster) MasterOf(key string) *RedisServer {
	c.t.Helper()
	c.WaitOK()
	ctx, cancel := context.WithTimeout(context.Background(), Hung)
	defer cancel()
	for _, node := range c.Nodes {
		if !node.Running() {
			continue
		}
		slot, err := node.Client().ClusterKeySlot(ctx, key).Result()
		require.NoErrorf(c.t, err, "slot of %s", key)
		ranges, err := c.ranges(ctx, node)
		require.NoError(c.t, err)
		for _, r := range ranges {
			if r.Start <= slot && slot <= r.End {
				return r.master
			}
		}
	}
	c.t.Fatalf("nobody has the slot of %s", key)
	return nil
}

// Other is a node that is master of something else than the key's slot.
func (c *RedisCluster) Other(key string) *RedisServer {
	c.t.Helper()
	is := c.MasterOf(key)
	for _, node := range c.Nodes {
		if node != is && node.Running() && strings.Contains(node.Client().Info(context.Background(), "replication").Val(), "role:master") {
			return node
		}
	}
	c.t.Fatalf("no other master than %s", is.Addr())
	return nil
}
