package consume

import (
	"encoding/binary"
	"fmt"
	"iter"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/window"
	"tallyroll/internal/window/schema"
)

// What is documented of sparse logs, without the production code: docs/design.md.

// simLogs are the logs in which the hits of a cell can be: a fine cell may begin in one and end in the next.
type simLogs struct {
	logs  [2]string
	first [2]int64 // the cells of each log that lie in the cell: from first up to end
	end   [2]int64
}

func (w *simWorld) store(client *redis.Client) *schema.Store {
	s := schema.NewStore(client, simNamespace)
	s.MaxLogBytes = w.plan.logBytes
	if w.plan.bound > 0 { // workers may have other bounds
		s.Bounds = window.NameBounds{{Prefix: simBounded, Max: w.plan.bound * (1 + w.stores%3)}}
		w.stores++
	}
	return s
}

// hasLogs reports whether a log outlives the hashes of its time in all tiers but the coarsest.
func (w *simWorld) hasLogs() bool {
	last := len(w.layout.Tiers) - 1
	for _, t := range w.layout.Tiers[:last] {
		if w.span(t)*t.Cell.Milliseconds()+t.Window.Milliseconds() > w.layout.Tiers[last].Window.Milliseconds() {
			return false
		}
	}
	return last > 0
}

// logCell is the length of a log's cells in milliseconds: the greatest common divisor of all cells'.
func (w *simWorld) logCell() int64 {
	cell := int64(0)
	for _, t := range w.layout.Tiers {
		for b := t.Cell.Milliseconds(); b != 0; {
			cell, b = b, cell%b
		}
	}
	return cell
}

// logSpan is how long a log lasts, in milliseconds: as many spans of the coarsest tier as its window takes.
func (w *simWorld) logSpan() int64 {
	t := w.layout.Tiers[len(w.layout.Tiers)-1]
	span := w.span(t) * t.Cell.Milliseconds()
	return (t.Window.Milliseconds() + span - 1) / span * span
}

// namesKey is the set that lists the counters with hits from a moment on.
func (w *simWorld) namesKey(shard string, milli int64) string {
	if w.hasLogs() {
		milli -= milli % w.logSpan()
	}
	return fmt.Sprintf("%s:names:%d", shard, milli/(2*w.layout.Tiers[len(w.layout.Tiers)-1].Window.Milliseconds()))
}

// logKey is the log in which a hit can be; empty without logs, or if it came late for a tier.
func (w *simWorld) logKey(h simHit) string {
	if !w.hasLogs() || len(h.cells) < len(w.layout.Tiers) {
		return ""
	}
	return fmt.Sprintf("%s:{%d}:s:%d:%s", simNamespace, h.shard, h.at/w.logSpan(), h.counter)
}

func (w *simWorld) logsOf(h simHit, from, length int64) (out simLogs) {
	if !w.hasLogs() {
		return out
	}
	span, cell := w.logSpan(), w.logCell()
	for i, epoch := range [2]int64{from / span, (from + length - 1) / span} {
		if i == 1 && epoch == from/span {
			break
		}
		out.logs[i] = fmt.Sprintf("%s:{%d}:s:%d:%s", simNamespace, h.shard, epoch, h.counter)
		out.first[i], out.end[i] = (from-epoch*span)/cell, (from+length-epoch*span)/cell
	}
	return out
}

// hasLogged reports whether a field of one of the logs lies in the cell.
func (l simLogs) hasLogged(log int, f simField) bool {
	at, err := strconv.ParseInt(f.name, 10, 64)
	return err == nil && at >= l.first[log] && at < l.end[log]
}

// logFields yields what logs have of a cell.
func (w *simWorld) logFields(c simCell) iter.Seq2[*simEntry, simField] {
	return func(yield func(*simEntry, simField) bool) {
		for i, key := range c.logs {
			if key == "" {
				return
			}
			e := w.redis.get(key)
			for _, f := range simLogFields(key, e) {
				if c.hasLogged(i, f) && !yield(e, f) {
					return
				}
			}
		}
	}
}

// logged is what logs have counted of a cell, without what a torn transaction has added.
func (w *simWorld) logged(c simCell) (n int64) {
	for _, f := range w.logFields(c) {
		n += f.number()
	}
	for i, key := range c.logs {
		if key == "" {
			break
		}
		if e := w.redis.get(key); e != nil {
			for name, torn := range e.torn {
				if c.hasLogged(i, simField{name: name}) {
					n -= torn.by
				}
			}
		}
	}
	return n
}

// logMoment is when a log's cell begins, in Unix milliseconds.
func (w *simWorld) logMoment(epoch int64, f simField) int64 {
	at, _ := strconv.ParseInt(f.name, 10, 64)
	return epoch*w.logSpan() + at*w.logCell()
}

func (f simField) number() int64 {
	n, _ := strconv.ParseInt(f.value, 10, 64)
	return n
}

// simLogFields are the cells of a log: a field each, as if it were a hash; nil for any other key.
func simLogFields(key string, e *simEntry) []simField {
	if e == nil || e.isForeign() || !strings.Contains(key, "}:s:") || strings.HasPrefix(key, simErased) {
		return nil
	}
	if e.text == "" || e.text[0] != 0xc1 {
		panic(fmt.Sprintf("%s has no header: %q", key, e.text))
	}
	return parseSimLog(e.text[1:])
}

// parseSimLog parses what follows a log's header; a cell may come several times.
func parseSimLog(text string) (out []simField) {
	for b := []byte(text); len(b) > 0; {
		cell, size := binary.Uvarint(b)
		b = b[size:]
		n := uint64(1)
		if cell%2 == 1 {
			n, size = binary.Uvarint(b)
			b = b[size:]
		}
		out = append(out, simField{strconv.FormatUint(cell/2, 10), strconv.FormatUint(n, 10)})
	}
	return out
}

// placesOf are the fields of the tiers' hashes to which a log's cell moves: each a key and a field.
func (w *simWorld) placesOf(log, field string) (out []simField) {
	shard, rest, _ := strings.Cut(strings.TrimPrefix(log, simNamespace+":{"), "}:s:")
	epoch, counter, _ := strings.Cut(rest, ":")
	number, _ := strconv.ParseInt(epoch, 10, 64)
	of, _ := strconv.Atoi(shard)
	at := w.logMoment(number, simField{name: field})
	for i, t := range w.layout.Tiers {
		c := w.place(simHit{counter: counter, shard: of, at: at}, i, t)
		out = append(out, simField{c.key, c.field})
	}
	return out
}
