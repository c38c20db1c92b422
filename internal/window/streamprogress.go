package window

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// Progress says how far the shards have got in one stream.
type Progress struct {
	Stream  string
	Counted bool   // every shard has a cursor
	Applied uint64 // the last sequence that has been applied to all counters; 0 before the first
	Stored  int64  // when the stream stored that message, Unix nanoseconds; 0 before the first
	AsOf    int64  // every hit that the stream stored before has been applied, Unix milliseconds
	Ended   int64  // when the stream was found gone, Unix milliseconds, or 0 while it lives
}

// Progress returns how far each listed stream is counted, by name, and the id of the namespace. It returns ErrNoLayout
// before the first worker has started, and a *ForeignError for a key that another program has written to.
func (r *Reader) Progress(ctx context.Context) (id string, streams []Progress, err error) {
	dir, err := r.look(ctx)
	if err != nil {
		return "", nil, err
	}
	var idle *redis.MapStringStringCmd
	cursors := make([][]*redis.SliceCmd, len(dir.streams))
	sent, err := r.store.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		idle = p.HGetAll(ctx, r.store.keys.idle())
		for i, stream := range dir.streams {
			for shard := range dir.layout.Shards {
				cursors[i] = append(cursors[i], p.HMGet(ctx, r.store.keys.cursor(shard, stream), cursorFields...))
			}
		}
		return nil
	})
	if err != nil {
		return "", nil, fmt.Errorf("read %d cursors: %w", len(sent), foreignReply(sent, err))
	}
	claims, err := r.store.keys.parseClaims(dir.listed, idle.Val())
	if err != nil {
		return "", nil, err
	}
	for i, stream := range dir.streams {
		p, err := progressOf(stream, dir.listed[stream], cursors[i], claims[stream])
		if err != nil {
			return "", nil, err
		}
		streams = append(streams, p)
	}
	return dir.id, streams, nil
}

// progressOf sums up the cursors of a stream. Those of an earlier incarnation of the stream say nothing
// about this one.
func progressOf(stream string, listed Listed, cursors []*redis.SliceCmd, claim Claim) (Progress, error) {
	out := Progress{Stream: stream, AsOf: listed.Created, Ended: listed.Ended}
	var all []record
	var created int64
	for _, cmd := range cursors {
		c, found, err := recordFrom(cmd.Args()[1].(string), cmd)
		if err != nil {
			return Progress{}, err
		}
		if found {
			c.Cursor = claim.Renew(c.Cursor)
			all = append(all, c)
			created = max(created, c.Created)
		}
	}
	first := true
	for _, c := range all {
		if c.Created != created {
			continue
		}
		if first || c.Seq < out.Applied {
			out.Applied, out.Stored = c.Seq, c.Stored
		}
		if first || c.AsOf < out.AsOf {
			out.AsOf = c.AsOf
		}
		first = false
	}
	out.Counted = len(all) == len(cursors) && len(all) > 0
	if !out.Counted {
		out.Applied, out.Stored = 0, 0
	}
	return out, nil
}
