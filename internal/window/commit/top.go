package commit

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/window"
	"tallyroll/internal/window/internal/cluster"
)

// topChange is what one attempt at a commit does to the summaries of its stream and shard: it reads them
// under the WATCH of the cursor, and writes them merged in the transaction that moves it. Every change of
// them moves the cursor, or counts in it as an erasure does, so they always cover exactly the hits that Redis
// has. A copy in the writer's memory would be wrong if Redis lost everything, the stream was rolled back, and
// another worker then reached the same cursor.
//
// A summary that another program has written to is left as it is. The hits still count: a list of the largest
// counters is no reason to stop a stream.
type topChange struct {
	writer   *Writer
	segments []window.Segment // in which the batch has hits
	replies  []*redis.StringCmd
	texts    []string // the new summaries of the segments; empty for one that is left as it is
	foreign  error    // about the first one left as it is
}

// queueReads queues the reads. GET distinguishes a key of another type from a missing one; MGET does not.
func (c *topChange) queueReads(ctx context.Context, p redis.Pipeliner, batch *window.ShardBatch) {
	for s := range batch.Segments {
		c.segments = append(c.segments, s)
		c.replies = append(c.replies, p.Get(ctx, c.key(s)))
	}
}

func (c *topChange) merge(changes *changes) error {
	size := c.writer.layout.SummarySize()
	for i, s := range c.segments {
		text, err := mergeReply(c.key(s), c.replies[i], changes.hits(s), size)
		if window.IsForeign(err) {
			c.foreign = cmp.Or(c.foreign, err)
		} else if err != nil {
			return err
		}
		c.texts = append(c.texts, text)
	}
	return nil
}

func mergeReply(key string, reply *redis.StringCmd, hits []window.Listing, size int) (string, error) {
	var s window.Summary
	text, err := reply.Result()
	switch {
	case err == nil:
		s, err = window.ParseSummary(text)
	case errors.Is(err, redis.Nil):
		err = nil
	default:
		return "", cluster.WrapForeign(key, err)
	}
	if err == nil {
		err = s.Merge(hits, size)
	}
	if err != nil {
		return "", &window.ForeignError{Key: key, Err: err}
	}
	return s.Encode(), nil
}

// write queues the new summaries. now is Redis's clock in Unix seconds. Those past their deadline are left
// out.
func (c *topChange) write(ctx context.Context, p redis.Pipeliner, now int64) {
	for i, s := range c.segments {
		if deadline := c.writer.layout.Tiers[s.Tier].SegmentDeadline(s.Number); deadline > now && c.texts[i] != "" {
			p.SetArgs(ctx, c.key(s), c.texts[i], redis.SetArgs{ExpireAt: time.Unix(deadline, 0)})
		}
	}
}

func (c *topChange) key(s window.Segment) string {
	w := c.writer
	return w.store.Keys.Summary(w.shard, w.layout.Tiers[s.Tier], s.Number, w.stream)
}
