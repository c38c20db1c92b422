package window

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// heldSummaries is how many summaries a writer keeps in memory: those of the
// running segments and of a few before them, for hits that come late. Others are
// read when they are needed.
const heldSummaries = 8

// topWriter keeps the summaries of one stream on one shard. Nobody but the
// stream's writer changes them, and each change moves the cursor in the same
// transaction; so a summary that was read under the cursor's WATCH, or written
// with the cursor, is that of exactly the hits that the cursor says are applied.
type topWriter struct {
	size   int
	held   map[segment]*summary
	recent []segment // the held ones, the one used last at the end
}

func newTopWriter(l Layout) *topWriter {
	return &topWriter{size: l.summarySize(), held: make(map[segment]*summary)}
}

// topChange is what a commit does to the summaries: computed once, so that a
// commit that is sent again adds nothing twice.
type topChange struct {
	segments []segment // that the cells are in; the latest last
	missing  []segment // of those, the ones to be read
	replies  *redis.SliceCmd
	texts    map[segment]string // the new summaries; nil before they are computed
}

func (t *topWriter) begin(l Layout, cells *Cells) *topChange {
	var c topChange
	for s := range cells.segments {
		c.segments = append(c.segments, s)
	}
	end := func(s segment) int64 { return l.Tiers[s.tier].cellStart(s.cell + 1) }
	slices.SortFunc(c.segments, func(a, b segment) int { return cmp.Compare(end(a), end(b)) })
	for _, s := range c.segments {
		if t.held[s] == nil {
			c.missing = append(c.missing, s)
		}
	}
	return &c
}

// read asks for the missing summaries, unless they have been read.
func (c *topChange) read(ctx context.Context, p redis.Pipeliner, w *Writer) {
	if c.texts != nil || len(c.missing) == 0 {
		return
	}
	keys := make([]string, len(c.missing))
	for i, s := range c.missing {
		keys[i] = w.summaryKey(s)
	}
	c.replies = p.MGet(ctx, keys...)
}

// compute adds the cells to the summaries, once.
func (c *topChange) compute(w *Writer, cells *Cells) error {
	if c.texts != nil {
		return nil
	}
	for i, s := range c.missing {
		w.tops.held[s] = newSummary(w.tops.size)
		text, found := c.replies.Val()[i].(string)
		if !found {
			continue
		}
		var err error
		if w.tops.held[s], err = parseSummary(w.tops.size, text); err != nil {
			return fmt.Errorf("summary %s: %w", w.summaryKey(s), err)
		}
	}
	for _, counter := range cells.counters {
		for _, cell := range counter.cells {
			if w.layout.isLevel(cell.tier) {
				w.tops.held[segment{cell.tier, cell.cell}].add(counter.name, cell.n)
			}
		}
	}
	c.texts = make(map[segment]string, len(c.segments))
	for _, s := range c.segments {
		c.texts[s] = w.tops.held[s].encode()
	}
	return nil
}

// write puts the new summaries into the transaction; now is Redis's clock in
// Unix seconds.
func (c *topChange) write(ctx context.Context, p redis.Pipeliner, w *Writer, now int64) {
	for _, s := range c.segments {
		deadline := w.layout.Tiers[s.tier].segmentDeadline(s.cell)
		if deadline > now {
			p.SetArgs(ctx, w.summaryKey(s), c.texts[s], redis.SetArgs{ExpireAt: time.Unix(deadline, 0)})
		}
	}
}

// applied keeps the summaries of the segments used last.
func (t *topWriter) applied(c *topChange) {
	t.recent = slices.DeleteFunc(t.recent, func(s segment) bool { return slices.Contains(c.segments, s) })
	t.recent = append(t.recent, c.segments...)
	if over := len(t.recent) - heldSummaries; over > 0 {
		for _, s := range t.recent[:over] {
			delete(t.held, s)
		}
		t.recent = slices.Delete(t.recent, 0, over)
	}
}

// failed forgets everything: what is in memory may have hits that are not applied.
func (t *topWriter) failed() {
	clear(t.held)
	t.recent = nil
}

func (w *Writer) summaryKey(s segment) string {
	return w.store.keys.summary(w.shard, w.layout.Tiers[s.tier], s.cell, w.stream)
}
