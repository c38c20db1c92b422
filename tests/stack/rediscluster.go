package stack

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Masters is how many masters a [RedisCluster] has, each with a third of the slots.
const Masters = 3

const slots = 16384 // of every cluster

// settleWithin bounds every wait for a cluster, or for Sentinels, to agree.
const settleWithin = 60 * time.Second

// RedisCluster is a Redis Cluster of redis-server processes. Kill and start its
// nodes as they are; who is master of what changes with that.
type RedisCluster struct {
	Nodes  []*RedisServer
	t      testing.TB
	client func() *redis.ClusterClient
}

// Cluster starts a cluster with the given number of replicas for each master.
// A master that does not answer for 2 s is replaced by a replica.
func Cluster(t testing.TB, replicas int, opts ...RedisOption) *RedisCluster {
	t.Helper()
	c := &RedisCluster{t: t}
	ctx, cancel := context.WithTimeout(context.Background(), settleWithin)
	defer cancel()
	bus := make([]int, Masters*(1+replicas))
	for i := range bus {
		bus[i] = FreePort(t)
		c.Nodes = append(c.Nodes, Redis(t, append(slices.Clone(opts), RedisArgs(
			"--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(bus[i]), "--cluster-node-timeout", "2000",
			"--repl-diskless-sync-delay", "0"))...))
	}
	do := func(node *RedisServer, args ...any) {
		t.Helper()
		if err := node.Client().Do(ctx, append([]any{"cluster"}, args...)...).Err(); err != nil {
			t.Fatalf("cluster %v: %v", args, err)
		}
	}
	for i, node := range c.Nodes {
		do(node, "set-config-epoch", i+1)
		do(node, "meet", "127.0.0.1", c.Nodes[0].Port(), bus[0])
		if i < Masters {
			do(node, "addslotsrange", i*slots/Masters, (i+1)*slots/Masters-1)
		}
	}
	Eventually(t, settleWithin, "the nodes to know each other", c.met)
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
	if err != nil {
		c.t.Fatalf("cluster myid: %v", err)
	}
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
	Eventually(c.t, settleWithin, "the cluster to be ok", c.ok)
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
		ranges, err := node.Client().ClusterSlots(ctx).Result()
		if err != nil {
			return false, err.Error()
		}
		slices.SortFunc(ranges, func(a, b redis.ClusterSlot) int { return a.Start - b.Start })
		view := ""
		for _, r := range ranges {
			master := c.at(r.Nodes[0].Addr)
			if master == nil || !master.Running() {
				return false, fmt.Sprintf("%s: slots %d-%d are still at %s", node.Addr(), r.Start, r.End, r.Nodes[0].Addr)
			}
			view += fmt.Sprintf("%d-%d at %s; ", r.Start, r.End, r.Nodes[0].Addr)
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

// at is the node with an address.
func (c *RedisCluster) at(addr string) *RedisServer {
	for _, node := range c.Nodes {
		if node.Addr() == addr {
			return node
		}
	}
	return nil
}

// MasterOf is the master of a key's slot, as all nodes agree.
func (c *RedisCluster) MasterOf(key string) *RedisServer {
	c.t.Helper()
	c.WaitOK()
	ctx, cancel := context.WithTimeout(context.Background(), settleWithin)
	defer cancel()
	for _, node := range c.Nodes {
		if !node.Running() {
			continue
		}
		slot, err := node.Client().ClusterKeySlot(ctx, key).Result()
		if err != nil {
			c.t.Fatalf("slot of %s: %v", key, err)
		}
		ranges, err := node.Client().ClusterSlots(ctx).Result()
		if err != nil {
			c.t.Fatalf("slots: %v", err)
		}
		for _, r := range ranges {
			if int64(r.Start) <= slot && slot <= int64(r.End) {
				return c.at(r.Nodes[0].Addr)
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

// SlotMove is a slot on its way from one master to another: as redis-cli moves
// it, in steps, so that a test decides when.
type SlotMove struct {
	c        *RedisCluster
	from, to *RedisServer
	slot     int64
}

// MoveSlot begins to move the slot of a key to another master. No key has moved yet.
func (c *RedisCluster) MoveSlot(key string, to *RedisServer) *SlotMove {
	c.t.Helper()
	m := &SlotMove{c: c, from: c.MasterOf(key), to: to}
	m.slot = m.from.Client().ClusterKeySlot(c.t.Context(), key).Val()
	m.do(to, "cluster", "setslot", m.slot, "importing", c.id(c.t.Context(), m.from))
	m.do(m.from, "cluster", "setslot", m.slot, "migrating", c.id(c.t.Context(), to))
	return m
}

func (m *SlotMove) do(node *RedisServer, args ...any) {
	m.c.t.Helper()
	if err := node.Client().Do(m.c.t.Context(), args...).Err(); err != nil {
		m.c.t.Fatalf("%v: %v", args, err)
	}
}

// Keys moves the given keys of the slot.
func (m *SlotMove) Keys(keys ...string) {
	m.c.t.Helper()
	args := []any{"migrate", "127.0.0.1", m.to.Port(), "", 0, 5000, "keys"}
	for _, key := range keys {
		args = append(args, key)
	}
	m.do(m.from, args...)
}

// Some moves up to n keys, as many as it can, and says how many were there to move.
func (m *SlotMove) Some(n int) int {
	m.c.t.Helper()
	keys, err := m.from.Client().ClusterGetKeysInSlot(m.c.t.Context(), int(m.slot), n).Result()
	if err != nil {
		m.c.t.Fatalf("keys of slot %d: %v", m.slot, err)
	}
	if len(keys) > 0 {
		m.Keys(keys...)
	}
	return len(keys)
}

// Finish moves what is left, gives the slot to its new master and waits until
// all nodes know.
func (m *SlotMove) Finish() {
	m.c.t.Helper()
	for m.Some(100) > 0 {
	}
	id := m.c.id(m.c.t.Context(), m.to)
	m.do(m.to, "cluster", "setslot", m.slot, "node", id) // first, or nobody would have it for a moment
	m.do(m.from, "cluster", "setslot", m.slot, "node", id)
	m.c.WaitOK()
}
