package window

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// topChange is what one attempt at a commit does to the summaries of its stream
// and shard. It reads them under the WATCH of the cursor, merges the batch into them,
// and writes them in the transaction that moves the cursor. Every change of the summaries
// moves the cursor, so they always cover exactly the hits that Redis has.
//
// A writer keeps nothing in memory from one attempt to the next: a second attempt
// adds to what it has read itself. A writer that trusted its memory would be wrong
// if Redis lost everything, the stream was rolled back, and another worker then came to
// the same cursor.
//
// If another program has written to a summary, the writer leaves it as it is. The hits count
// all the same: a list of the largest counters is no reason to stop a stream.
type topChange struct {
	writer   *Writer
	segments []segment // in which the batch has hits
	replies  []*redis.StringCmd
	texts    []string      // the new summaries of the segments; empty for one that is left as it is
	foreign  *ForeignError // about the first one left as it is
}

// ask queues the commands that read the summaries. GET distinguishes a key of another type from a
// missing key; MGET does not.
func (c *topChange) ask(ctx context.Context, p redis.Pipeliner, batch *ShardBatch) {
	for s := range batch.segments {
		c.segments = append(c.segments, s)
		c.replies = append(c.replies, p.Get(ctx, c.key(s)))
	}
}

// merge adds the hits of the changes to what has been read.
func (c *topChange) merge(changes *changes) error {
	size := c.writer.layout.summarySize()
	for i, s := range c.segments {
		text, err := mergeReply(c.key(s), c.replies[i], changes.hits(s), size)
		var foreign *ForeignError
		if errors.As(err, &foreign) {
			if c.foreign == nil {
				c.foreign = foreign
			}
		} else if err != nil {
			return err
		}
		c.texts = append(c.texts, text)
	}
	return nil
}

// mergeReply adds the hits to the summary that Redis has.
func mergeReply(key string, reply *redis.StringCmd, hits []listing, size int) (string, error) {
	var s summary
	text, err := reply.Result()
	switch {
	case err == nil:
		s, err = parseSummary(text)
	case errors.Is(err, redis.Nil):
		err = nil
	default:
		return "", foreign(key, err)
	}
	if err == nil {
		err = s.merge(hits, size)
	}
	if err != nil {
		return "", &ForeignError{Key: key, Err: err}
	}
	return s.encode(), nil
}

// write puts the new summaries into the transaction. now is Redis's clock in Unix
// seconds. It skips a summary past its deadline, like a hash.
func (c *topChange) write(ctx context.Context, p redis.Pipeliner, now int64) {
	for i, s := range c.segments {
		if deadline := c.writer.layout.Tiers[s.tier].segmentDeadline(s.number); deadline > now && c.texts[i] != "" {
			p.SetArgs(ctx, c.key(s), c.texts[i], redis.SetArgs{ExpireAt: time.Unix(deadline, 0)})
		}
	}
}

func (c *topChange) key(s segment) string {
	w := c.writer
	return w.store.keys.summary(w.shard, w.layout.Tiers[s.tier], s.number, w.stream)
}
