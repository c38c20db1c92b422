package fresh

import (
	"cmp"
	"fmt"
	"maps"
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
	// maxMessages bounds the messages of a request, because each check looks at all of them.
	maxMessages = 100
)

// Condition is what must hold before a question is answered.
type Condition struct {
	// Counters are those that the answer is about; none: it may be about any. Only their shards must have the
	// messages. Others can be a second later, because they move their cursors only that often without hits.
	Counters []string
	// WholeCells also asks that as_of has passed the cell of the finest tier in which the messages were
	// stored, for answers that leave out cells which are not complete.
	WholeCells bool

	after  []message // by stream
	maxAge time.Duration
	wait   time.Duration
	names  Names
}

type message struct {
	stream string
	seq    uint64
}

// IsZero reports whether the condition always holds.
func (c *Condition) IsZero() bool { return len(c.after) == 0 && c.maxAge == 0 }

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
	last := make(map[string]uint64)
	for _, text := range after {
		colon := strings.LastIndexByte(text, ':')
		stream, sequence := text[:max(colon, 0)], text[colon+1:]
		seq, err := strconv.ParseUint(sequence, 10, 64)
		if stream == "" || err != nil || seq == 0 {
			return c, web.BadInput(n.After, "%s is not STREAM:SEQUENCE: allowed is the name of a stream, a colon and a sequence from 1 on, such as HITS:812", web.Excerpt(text))
		}
		last[stream] = max(last[stream], seq)
	}
	for _, stream := range slices.Sorted(maps.Keys(last)) {
		c.after = append(c.after, message{stream, last[stream]})
	}
	if maxAge != "" {
		if c.maxAge, err = time.ParseDuration(maxAge); err != nil || c.maxAge <= 0 {
			return c, web.BadInput(n.MaxAge, "%s: allowed is %s", web.Excerpt(maxAge), MaxAgeHint)
		}
	}
	if wait != "" && c.IsZero() {
		return c, web.BadInput(n.Wait, "it is only beside %s or %s", n.After, n.MaxAge)
	}
	if c.wait, err = time.ParseDuration(cmp.Or(wait, defaultWait.String())); err != nil || c.wait < 0 || c.wait > maxWait {
		return c, web.BadInput(n.Wait, "%s: allowed is %s", web.Excerpt(wait), WaitHint)
	}
	return c, nil
}

// maxCounters bounds the counters whose shards are looked at one by one, because that is done at each check.
const maxCounters = 16

// missing returns the first message that a read does not show as counted, and how far its stream is counted;
// nil if it shows all.
func (c *Condition) missing(at *read.Reach) (_ *message, counted uint64) {
	for i, m := range c.after {
		stream := at.Streams[m.stream]
		counted = stream.Seq
		if n := len(c.Counters); counted < m.seq && stream.Shards != nil && n > 0 && n <= maxCounters {
			counted = math.MaxUint64
			for _, counter := range c.Counters {
				counted = min(counted, stream.Shards[at.Layout.ShardOf(window.HashCounter([]byte(counter)))])
			}
		}
		if counted < m.seq {
			return &c.after[i], counted
		}
	}
	return nil, 0
}

// cellsCompleteFrom returns the as_of (Unix milliseconds) from which all cells with the messages are complete, given
// a read that shows them as counted; 0 without WholeCells.
func (c *Condition) cellsCompleteFrom(at *read.Reach) (asOf int64) {
	if !c.WholeCells {
		return 0
	}
	cell := at.Layout.Tiers[0].CellMillis()
	for _, m := range c.after {
		asOf = max(asOf, (at.Streams[m.stream].Latest/cell+1)*cell)
	}
	return asOf
}

// refuse returns why a message never will be counted: a *web.InputError. A caller who may not list streams
// does not learn their names.
func (c *Condition) refuse(m *message, at *read.Reach, mayList bool) error {
	known, isKnown := at.Streams[m.stream]
	switch {
	case isKnown && known.Ended:
		return web.BadInput(c.names.After, "stream %s has ended, and is counted up to %d of %d: no later message of it will be counted", m.stream, known.Seq, m.seq)
	case isKnown:
		return nil
	case mayList && len(at.Streams) > 0:
		return web.BadInput(c.names.After, "stream %s is not counted here: counted are %s", web.Excerpt(m.stream), strings.Join(slices.Sorted(maps.Keys(at.Streams)), ", "))
	}
	return web.BadInput(c.names.After, "stream %s is not counted here", web.Excerpt(m.stream))
}

func retry(kind *web.Kind, param, format string, args ...any) *web.Problem {
	return web.RetryLater(param+": "+fmt.Sprintf(format, args...), "1").OfKind(kind)
}

func formatMilli(at int64) string { return time.UnixMilli(at).UTC().Format("2006-01-02T15:04:05.999Z") }
