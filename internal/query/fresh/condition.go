package fresh

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"tallyroll/internal/web"
	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
)

const (
	defaultWait, maxWait = 2 * time.Second, 10 * time.Second
	// maxMessages and maxCounters bound what each check of a condition looks at: the messages of a request,
	// and the counters whose shards are told apart.
	maxMessages, maxCounters = 100, 16
)

// Condition is what must hold before a question is answered. The zero value always holds.
type Condition struct {
	// Counters are those that the answer is about; none: it may be about any. Only their shards must have the
	// messages: a shard without new hits moves its cursor only once per second.
	Counters []string
	// WholeCells also asks that as_of has passed the cell of the finest tier in which the messages were
	// stored, for answers that leave out cells which are not complete.
	WholeCells bool
	// Waits is called before the question begins to wait, and what it returns after that; nil: nothing is.
	Waits func() (resume func())

	after  []message
	maxAge time.Duration // 0: any
	wait   time.Duration
	names  Names
}

type message struct {
	stream string
	seq    uint64
}

// Names are what a request calls the parts of a condition.
type Names struct{ After, MaxAge, Wait string }

const (
	MaxAgeHint = "a duration such as 2s, 500ms or 1m"
	WaitHint   = "a duration from 0s to 10s, such as 2s or 500ms"
)

// Parse returns the condition of these texts. An empty one is missing. The error is a *web.InputError.
func (n Names) Parse(after []string, maxAge, wait string) (c Condition, err error) {
	c.names = n
	if len(after) > maxMessages {
		return c, web.BadInput(n.After, "%d messages in one request: at most %d are allowed", len(after), maxMessages)
	}
	for _, text := range after {
		colon := strings.LastIndexByte(text, ':')
		seq, err := strconv.ParseUint(text[colon+1:], 10, 64)
		if colon < 1 || err != nil || seq == 0 {
			return c, web.BadInput(n.After, "%s is not STREAM:SEQUENCE: must be the name of a stream, a colon and a "+
				"sequence from 1 on, such as HITS:812", web.Excerpt(text))
		}
		c.after = append(c.after, message{text[:colon], seq})
	}
	if maxAge != "" {
		if c.maxAge, err = time.ParseDuration(maxAge); err != nil || c.maxAge <= 0 {
			return c, web.BadInput(n.MaxAge, "%s: must be %s", web.Excerpt(maxAge), MaxAgeHint)
		}
	}
	if wait != "" && c.IsZero() {
		return c, web.BadInput(n.Wait, "only with %s or %s", n.After, n.MaxAge)
	}
	c.wait, err = time.ParseDuration(cmp.Or(wait, defaultWait.String()))
	if err != nil || c.wait < 0 || c.wait > maxWait {
		return c, web.BadInput(n.Wait, "%s: must be %s", web.Excerpt(wait), WaitHint)
	}
	return c, nil
}

// IsZero reports whether the condition always holds.
func (c *Condition) IsZero() bool { return len(c.after) == 0 && c.maxAge == 0 }

// missing returns the first message that a read does not show as counted, and up to where it shows its stream
// as counted; nil if it shows all.
func (c *Condition) missing(at *read.Reach) (_ *message, counted uint64) {
	for i, m := range c.after {
		stream, _ := at.Stream(m.stream)
		if counted = c.counted(stream.Shards, at.Layout); counted < m.seq {
			return &c.after[i], counted
		}
	}
	return nil, 0
}

func (c *Condition) counted(shards []uint64, layout window.Layout) uint64 {
	if len(shards) == 0 {
		return 0
	}
	out := uint64(math.MaxUint64)
	if n := len(c.Counters); n > 0 && n <= maxCounters {
		for _, counter := range c.Counters {
			out = min(out, shards[layout.ShardOf(window.HashCounter([]byte(counter)))])
		}
		return out
	}
	return slices.Min(shards)
}

// completeFrom returns the as_of (Unix milliseconds) from which all cells with the messages are complete, by
// a read that shows them as counted; 0 without WholeCells.
func (c *Condition) completeFrom(at *read.Reach) (asOf int64) {
	for _, m := range c.after {
		if stream, _ := at.Stream(m.stream); c.WholeCells {
			cell := at.Layout.Tiers[0].CellMillis()
			asOf = max(asOf, (stream.Latest/cell+1)*cell)
		}
	}
	return asOf
}

// refuse returns why a message never will be counted: a *web.InputError. A caller who may not list streams
// does not learn their names.
func (c *Condition) refuse(m *message, at *read.Reach, mayList bool) error {
	stream, known := at.Stream(m.stream)
	switch {
	case known && stream.Ended > 0:
		return web.BadInput(c.names.After, "stream %s has ended before its message %d was counted", m.stream, m.seq)
	case known:
		return nil
	}
	counted := ""
	if mayList {
		var names []string
		for _, s := range at.Streams {
			names = append(names, s.Stream)
		}
		counted = ": counted are " + strings.Join(names, ", ")
	}
	return web.BadInput(c.names.After, "stream %s is not counted here%s", web.Excerpt(m.stream), counted)
}
