package window

import (
	"context"
	"fmt"
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
type topChange struct {
	writer   *Writer
	segments []segment // that the cells are in
	replies  *redis.SliceCmd
	texts    []string // the new summaries of the segments
}

// read asks for the summaries as they are.
func (c *topChange) read(ctx context.Context, p redis.Pipeliner, cells *Cells) {
	var keys []string
	for s := range cells.segments {
		c.segments = append(c.segments, s)
		keys = append(keys, c.key(s))
	}
	if len(keys) > 0 {
		c.replies = p.MGet(ctx, keys...)
	}
}

// add adds the cells to what has been read.
func (c *topChange) add(cells *Cells) error {
	l := c.writer.layout
	summaries := make(map[segment]*summary, len(c.segments))
	for i, s := range c.segments {
		summaries[s] = newSummary(l.summarySize())
		if text, found := c.replies.Val()[i].(string); found {
			var err error
			if summaries[s], err = parseSummary(l.summarySize(), text); err != nil {
				return fmt.Errorf("summary %s: %w", c.key(s), err)
			}
		}
	}
	var each []cellCount
	for i := range cells.counters {
		counter := &cells.counters[i]
		each = cells.cells(counter, each)
		for _, cell := range each {
			if l.isLevel(cell.tier) {
				summaries[segment{cell.tier, cell.cell}].add(counter.name, cell.n)
			}
		}
	}
	for _, s := range c.segments {
		c.texts = append(c.texts, summaries[s].encode())
	}
	return nil
}

// write puts the new summaries into the transaction; now is Redis's clock in
// Unix seconds. One past its deadline is skipped, as a hash is.
func (c *topChange) write(ctx context.Context, p redis.Pipeliner, now int64) {
	for i, s := range c.segments {
		if deadline := c.writer.layout.Tiers[s.tier].segmentDeadline(s.cell); deadline > now {
			p.SetArgs(ctx, c.key(s), c.texts[i], redis.SetArgs{ExpireAt: time.Unix(deadline, 0)})
		}
	}
}

func (c *topChange) key(s segment) string {
	w := c.writer
	return w.store.keys.summary(w.shard, w.layout.Tiers[s.tier], s.cell, w.stream)
}
