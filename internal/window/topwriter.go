package window

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// topChange is what one attempt at a commit does to the summaries of its stream
// and shard. It reads them under the WATCH of the cursor, adds the cells, and
// writes them in the transaction that moves the cursor. Every change of them moves
// it, so they are those of exactly the hits that Redis has.
//
// Nothing is kept in memory from one attempt to the next: a second attempt
// adds to what it has read itself. A writer that trusted its memory would be wrong
// where Redis lost everything and another worker came to the same cursor over a
// stream that had been rolled back in between.
//
// A summary that something else has written to is left as it is. The hits count
// all the same: a list of the largest counters is no reason to stop a stream.
type topChange struct {
	writer   *Writer
	segments []segment // that the cells are in
	replies  []*redis.StringCmd
	texts    []string      // the new summaries of the segments; empty for one that is left as it is
	foreign  *ForeignError // the first of those
}

// read asks for the summaries as they are. GET tells a key of another type from none; MGET does not.
func (c *topChange) read(ctx context.Context, p redis.Pipeliner, cells *Cells) {
	for s := range cells.segments {
		c.segments = append(c.segments, s)
		c.replies = append(c.replies, p.Get(ctx, c.key(s)))
	}
}

// add adds the cells to what has been read.
func (c *topChange) add(cells *Cells) error {
	l := c.writer.layout
	summaries := make(map[segment]*summary, len(c.segments))
	for i, s := range c.segments {
		text, err := c.replies[i].Result()
		if err == nil {
			if summaries[s], err = parseSummary(l.summarySize(), text); err != nil {
				err = &ForeignError{Key: c.key(s), Err: err}
			}
		} else if err = foreign(c.key(s), err); errors.Is(err, redis.Nil) {
			summaries[s], err = newSummary(l.summarySize()), nil
		}
		if err == nil {
			continue
		}
		delete(summaries, s)
		var foreign *ForeignError
		if !errors.As(err, &foreign) {
			return err
		}
		if c.foreign == nil {
			c.foreign = foreign
		}
	}
	var each []cellCount
	for i := range cells.counters {
		counter := &cells.counters[i]
		each = cells.cells(counter, each)
		for _, cell := range each {
			if !l.isLevel(cell.tier) {
				continue
			}
			if summary := summaries[segment{cell.tier, cell.cell}]; summary != nil {
				summary.add(counter.name, cell.n)
			}
		}
	}
	for _, s := range c.segments {
		text := ""
		if summary := summaries[s]; summary != nil {
			text = summary.encode()
		}
		c.texts = append(c.texts, text)
	}
	return nil
}

// write puts the new summaries into the transaction; now is Redis's clock in
// Unix seconds. One past its deadline is skipped, as a hash is.
func (c *topChange) write(ctx context.Context, p redis.Pipeliner, now int64) {
	for i, s := range c.segments {
		if deadline := c.writer.layout.Tiers[s.tier].segmentDeadline(s.cell); deadline > now && c.texts[i] != "" {
			p.SetArgs(ctx, c.key(s), c.texts[i], redis.SetArgs{ExpireAt: time.Unix(deadline, 0)})
		}
	}
}

func (c *topChange) key(s segment) string {
	w := c.writer
	return w.store.keys.summary(w.shard, w.layout.Tiers[s.tier], s.cell, w.stream)
}
