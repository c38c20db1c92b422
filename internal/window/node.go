package window

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
)

// Where a command goes. With a single server or Sentinel there is no choice. On a cluster, a shard is a slot
// on one node. Commands that count, or that must be read in order, go to that node's own client, because the
// cluster's client follows redirects and retries command by command.

// findMasters asks a cluster, for at most a second, which node is master of which slots. After a failure, a
// slot may have moved or its master may have died.
func (s *Store) findMasters(ctx context.Context) {
	if s.cluster == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	// ReloadState would return before it has asked, and the next attempt would go to the same node.
	_ = s.cluster.ForEachMaster(ctx, func(context.Context, *redis.Client) error { return nil })
}

// readInOrder sends the commands that the functions queue, each with its key as the first argument. What
// first reads from a shard is never newer than what then reads from it, and nothing that either reads is
// newer than what last reads. It may call the functions again; only the commands of the last call have
// replies, with the errors of single keys. It returns the servers' clocks after first and then.
//
// The commands for a node go over one connection, and so to one process with one history. All nodes are asked
// at once, before last. The first attempt follows no redirect, because a redirected cursor would be read
// after the counts that it describes. If a slot is moving, everything is read again in three steps, with
// redirects. That does not notice a fail-over between the first two that loses commits.
func (s *Store) readInOrder(ctx context.Context, first, then, last func(redis.Pipeliner)) (serverTimes, error) {
	if s.cluster == nil {
		var clock *redis.TimeCmd
		_, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			first(p)
			then(p)
			last(p)
			clock = p.Time(ctx)
			return nil
		})
		return serverTimes{"": clock.Val()}, err
	}
	times, err := s.readByNode(ctx, first, then)
	if err == nil {
		_, err = s.readByNode(ctx, last)
	}
	if err == nil {
		return times, nil
	}
	s.cluster.ReloadState(ctx)
	if !redirected(err) {
		return nil, err
	}
	for _, queue := range []func(redis.Pipeliner){first, then, last} {
		if err := s.readRedirected(ctx, queue); err != nil {
			return nil, err
		}
	}
	return s.times(ctx)
}

func (s *Store) readByNode(ctx context.Context, steps ...func(redis.Pipeliner)) (serverTimes, error) {
	queued := s.cluster.Pipeline()
	for _, queue := range steps {
		queue(queued)
	}
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
			return cmp.Or(err, refusal(cmds))
		})
	}
	err := group.Wait()
	times := make(serverTimes, len(clocks))
	for address, clock := range clocks {
		times[address] = clock.Val()
	}
	return times, err
}

// refusal returns the first error with which a node refused to read, whatever the key holds.
func refusal(cmds []redis.Cmder) error {
	for _, cmd := range cmds {
		if raw, ok := cmd.(*redis.RawCmd); ok {
			if err := errorIn(raw.Val()); err != nil && !isAboutValue(err) {
				return err
			}
		}
	}
	return nil
}

// readRedirected sends the queued commands through the cluster's client, which sees redirects only in replies
// that it parses. So raw commands are sent as parsed ones and get their replies.
func (s *Store) readRedirected(ctx context.Context, queue func(redis.Pipeliner)) error {
	queued := s.cluster.Pipeline()
	queue(queued)
	parsed := make([]redis.Cmder, queued.Len())
	for i, cmd := range queued.Cmds() {
		parsed[i] = redis.NewCmd(ctx, cmd.Args()...)
	}
	_, err := s.cluster.Pipelined(ctx, func(p redis.Pipeliner) error { return p.BatchProcess(ctx, parsed...) })
	for i, cmd := range queued.Cmds() {
		if isSplit(parsed[i].Err()) && cmd.Name() == "pfcount" {
			n, err := s.countUnion(ctx, cmd.Args()[1:])
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

// redirected reports whether another node has the slot, or some keys of the slot.
func redirected(err error) bool {
	return redis.HasErrorPrefix(err, "MOVED ") || redis.HasErrorPrefix(err, "ASK ") || isSplit(err)
}

// isSplit reports whether no node has all keys of a command, because their slot is moving.
func isSplit(err error) bool { return redis.HasErrorPrefix(err, "TRYAGAIN ") }

type server struct {
	redis.Cmdable
	name string // for messages
}

// masters returns the servers that hold the namespace: a single one, or a cluster's masters.
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

// Servers returns how many servers hold the namespace: a cluster's masters, or one.
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
