package window

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// trip is one round trip, with what it is to read and what it has read.
type trip struct {
	wanted
	replies
	sharedTrip
}

// replies are what a trip has read.
type replies struct {
	record, list   reply // the layout record and the list of streams
	idle           reply // the claims
	cursorReplies  []*redis.RawCmd
	hashReplies    []*redis.RawCmd
	sumReplies     []*redis.RawCmd
	unionReplies   []*redis.RawCmd
	sent, received time.Time   // by the local clock
	times          serverTimes // when everything had been read
}

// travel reads what a trip wants: of each shard cursors before hashes, then the list of streams, and the clocks
// last. The list comes after whatever has an as_of: a new stream is listed before any as_of claims its hits.
func (r *Reader) travel(ctx context.Context, t *trip) (err error) {
	k := r.store.keys
	record, idle := redis.NewRawCmd(ctx, "get", k.layout()), redis.NewRawCmd(ctx, "hgetall", k.idle())
	list := redis.NewRawCmd(ctx, "hgetall", k.streams())
	t.sent = r.local()
	t.times, err = r.store.readInOrder(ctx, func(p redis.Pipeliner) {
		_ = p.BatchProcess(ctx, record, idle)
		t.cursorReplies = queue(ctx, p, t.cursors.keys, "hmget", cursorArgs)
	}, func(p redis.Pipeliner) {
		t.hashReplies = queue(ctx, p, t.hashes.keys, "hgetall", nil)
		t.sumReplies = queue(ctx, p, t.sums.keys, "hvals", nil)
		t.unionReplies = queueUnions(ctx, p, t.unions.keys)
	}, func(p redis.Pipeliner) {
		_ = p.BatchProcess(ctx, list)
	})
	if err != nil {
		return err
	}
	t.received = r.local()
	t.record, t.list = reply{k.layout(), string(record.Val())}, reply{k.streams(), string(list.Val())}
	t.idle = reply{k.idle(), string(idle.Val())}
	return nil
}

// queue queues the same command for each key.
func queue(ctx context.Context, p redis.Pipeliner, keys []string, name string, more []any) []*redis.RawCmd {
	out := make([]*redis.RawCmd, len(keys))
	for i, key := range keys {
		out[i] = redis.NewRawCmd(ctx, append([]any{name, key}, more...)...)
		_ = p.BatchProcess(ctx, out[i])
	}
	return out
}

// cursor, hash and values return what Redis said about a key that the trip has read.
func (t *trip) cursor(key string) reply {
	return reply{key, string(t.cursorReplies[t.cursors.at[key]].Val())}
}

func (t *trip) hash(key string) reply {
	return reply{key, string(t.hashReplies[t.hashes.at[key]].Val())}
}

func (t *trip) values(key string) reply {
	return reply{key, string(t.sumReplies[t.sums.at[key]].Val())}
}

func (t *trip) union(key string) reply {
	return reply{key, string(t.unionReplies[t.unions.at[key]].Val())}
}
