package window

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
)

// Where a command goes. On a single server, or the master that Sentinels name,
// there is no choice. On a cluster a shard is a slot and lives on one node, and
// what counts, or must be read in order, goes to that node's own client: the
// cluster's client follows redirects and repeats, command by command.

// watch runs fn in a WATCH of one key on the server that holds it, at most once.
// It repeats nothing and follows no redirect.
func (s *Store) watch(ctx context.Context, key string, fn func(*redis.Tx) error) error {
	if s.cluster == nil {
		return s.client.Watch(ctx, fn, key)
	}
	node, err := s.cluster.MasterForKey(ctx, key)
	if err != nil {
		return err
	}
	return node.Watch(ctx, fn, key)
}

// findMasters asks a cluster which node is master of what, for at most a second:
// after a failure the slot may have moved, or its master may have died.
func (s *Store) findMasters(ctx context.Context) {
	if s.cluster == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	// This asks before it calls anything; ReloadState would come back before it has
	// asked, and the next attempt would go to where the last one went.
	_ = s.cluster.ForEachMaster(ctx, func(context.Context, *redis.Client) error { return nil })
}

// readInOrder sends the commands that both functions queue, each with its key as
// first argument. What first reads of a shard is never newer than what then reads
// of it. Both may be called again, after which only the commands of the last call
// have replies. It returns what the servers' clocks said when all of it had been read.
// A key of another type is a *ForeignError.
//
// The commands of a node go over one connection, so to one process with one
// history, and all nodes are asked at once. No redirect is followed: of a slot
// that moves, a redirected cursor would be read after the counts that it tells
// of. Where one is on its way all is read again in two steps, with redirects. What
// that cannot see is a fail-over between the two that loses commits.
func (s *Store) readInOrder(ctx context.Context, first, then func(redis.Pipeliner)) (serverTimes, error) {
	if s.cluster == nil {
		var clock *redis.TimeCmd
		cmds, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			first(p)
			then(p)
			clock = p.Time(ctx)
			return nil
		})
		return serverTimes{"": clock.Val()}, foreignReply(cmds, err)
	}
	times, err := s.readByNode(ctx, first, then)
	if err == nil || errors.Is(err, redis.Nil) {
		return times, err
	}
	s.cluster.ReloadState(ctx)
	if !redirected(err) {
		return nil, err
	}
	for _, queue := range []func(redis.Pipeliner){first, then} {
		cmds, err := s.cluster.Pipelined(ctx, func(p redis.Pipeliner) error { queue(p); return nil })
		if err != nil {
			return nil, foreignReply(cmds, err)
		}
	}
	return s.times(ctx)
}

func (s *Store) readByNode(ctx context.Context, first, then func(redis.Pipeliner)) (serverTimes, error) {
	queued := s.cluster.Pipeline()
	first(queued)
	then(queued)
	nodes := make(map[*redis.Client]redis.Pipeliner)
	for _, cmd := range queued.Cmds() {
		node, err := s.cluster.MasterForKey(ctx, cmd.Args()[1].(string))
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
			return foreignReply(cmds, err)
		})
	}
	err := group.Wait()
	times := make(serverTimes, len(clocks))
	for address, clock := range clocks {
		times[address] = clock.Val()
	}
	return times, err
}

// times asks all masters of a cluster for their clocks.
func (s *Store) times(ctx context.Context) (serverTimes, error) {
	var mu sync.Mutex
	out := make(serverTimes)
	err := s.cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		at, err := node.Time(ctx).Result()
		mu.Lock()
		defer mu.Unlock()
		out[node.Options().Addr] = at
		return err
	})
	return out, err
}

// redirected reports whether a node said that another one has the slot, or that key of it.
func redirected(err error) bool {
	_, moved := redis.IsMovedError(err)
	_, ask := redis.IsAskError(err)
	return moved || ask
}

// server is one that holds data.
type server struct {
	redis.Cmdable
	name string // for people
}

// masters are the servers that hold the namespace: one, or those of a cluster by address.
func (s *Store) masters(ctx context.Context) ([]server, error) {
	if s.cluster == nil {
		return []server{{s.client, "Redis"}}, nil
	}
	var mu sync.Mutex
	var out []server
	err := s.cluster.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		out = append(out, server{node, "Redis at " + node.Options().Addr})
		return nil
	})
	slices.SortFunc(out, func(a, b server) int { return strings.Compare(a.name, b.name) })
	return out, err
}

// Servers is how many servers the namespace is spread over: the masters of a cluster, or one.
func (s *Store) Servers(ctx context.Context) (int, error) {
	if s.cluster == nil {
		return 1, nil
	}
	masters, err := s.masters(ctx)
	if err != nil {
		return 0, fmt.Errorf("count the masters: %w", err)
	}
	return max(1, len(masters)), nil
}
