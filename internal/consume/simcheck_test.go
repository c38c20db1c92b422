package consume

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"tallyroll/internal/window"
)

// asOf is the earliest as_of of all shards; 0 where one has no cursor.
func (w *simWorld) asOf() int64 {
	earliest := int64(0)
	for shard, at := range w.cursors() {
		if shard == 0 || at < earliest {
			earliest = at
		}
	}
	return earliest
}

// cursors are the as_of of each shard.
func (w *simWorld) cursors() []int64 {
	w.redis.mu.Lock()
	defer w.redis.mu.Unlock()
	return w.cursorsLocked()
}

func (w *simWorld) cursorsLocked() []int64 {
	out := make([]int64, w.plan.shards)
	for shard := range out {
		key := simNamespace + ":{" + strconv.Itoa(shard) + "}:cursor:" + simName
		value, _ := w.redis.get(key).value("as_of")
		out[shard], _ = strconv.ParseInt(value, 10, 64)
	}
	return out
}

type simBounds struct{ lower, upper int64 }

// check compares the data with what was published: each message is counted at
// most once, and once where it has to be: at the end (all), or where as_of says so.
func (w *simWorld) check(all bool) string {
	w.redis.mu.Lock()
	defer w.redis.mu.Unlock()
	now := simNow()
	asOf := w.cursorsLocked()
	shared := map[simCell]simBounds{}
	for _, m := range w.messages {
		for _, h := range m.hits {
			if h.others != nil {
				if problem := w.checkNames(m, h, now, all, asOf); problem != "" {
					return problem
				}
				continue
			}
			due := m.fate == simHeld && (all || m.stored/1e6 < asOf[h.shard])
			for _, c := range h.cells {
				if !w.single[c.tier].Holds(h.hash, h.at, now) {
					continue // past its deadline
				}
				if h.shared {
					b := shared[c]
					if b.upper += h.n; due {
						b.lower += h.n
					}
					shared[c] = b
					continue
				}
				have := w.count(c)
				if have == h.n || have == 0 && (!due || w.foreignKeys[c.key]) {
					continue
				}
				return fmt.Sprintf("%s: %s of shard %d has %d in field %s of %s, want %d (all %v, as_of of the shard is %dms after the message, fate %d)",
					m, h.counter, h.shard, have, c.field, c.key, h.n, all, asOf[h.shard]-m.stored/1e6, m.fate)
			}
		}
	}
	for c, b := range shared {
		if have := w.count(c); have < b.lower || have > b.upper {
			return fmt.Sprintf("field %s of %s has %d, want %d to %d (all %v)", c.field, c.key, have, b.lower, b.upper, all)
		}
	}
	if problem := w.checkKeys(all); problem != "" {
		return problem
	}
	return w.checkRejects(all)
}

// checkNames: a hit that its message's subject names is counted under one of the names
// that the subject can give, in all tiers.
func (w *simWorld) checkNames(m *simMessage, h simHit, now int64, all bool, asOf []int64) string {
	names := append([]simHit{h}, h.others...)
	due, counted := m.fate == simHeld, map[string]bool{}
	for _, name := range names {
		due = due && (all || m.stored/1e6 < asOf[name.shard])
	}
	for tier := range h.cells {
		sum, alive := int64(0), true
		for _, name := range names {
			if alive = alive && w.single[tier].Holds(name.hash, name.at, now); !alive {
				break // past its deadline
			}
			if n := w.count(name.cells[tier]); n > 0 {
				sum += n
				counted[name.counter] = true
			}
		}
		if alive && sum != h.n && (sum != 0 || due) || len(counted) > 1 {
			return fmt.Sprintf("%s: the hit that its subject names is counted %d times as %v in tier %d, want %d (all %v, fate %d)",
				m, sum, counted, tier, h.n, all, m.fate)
		}
	}
	return ""
}

func (w *simWorld) count(c simCell) int64 {
	value, _ := w.redis.get(c.key).value(c.field)
	n, _ := strconv.ParseInt(value, 10, 64)
	return n
}

// checkKeys: everything expires but the layout, the list of streams and the
// cursors, which all last in the end, whoever took the stream for ended; a counter has at most two hashes in a tier, its name is listed, and
// the summaries say of it what its hashes do.
func (w *simWorld) checkKeys(all bool) string {
	alive := map[string]int{}
	for key := range w.redis.keys {
		e := w.redis.get(key)
		if e == nil || e.isForeign() {
			continue
		}
		if e.expires == 0 && !slices.Contains([]string{simNamespace + ":layout", simNamespace + ":streams"}, key) && !strings.Contains(key, "}:cursor:") {
			return key + " has no expiry"
		}
		if all && e.expires != 0 && strings.Contains(key, "}:cursor:") {
			return key + " is the cursor of a stream that is read, and expires"
		}
		before, rest, cells := strings.Cut(key, ":h:")
		if !cells {
			continue
		}
		cell, rest, _ := strings.Cut(rest, ":")
		epoch, counter, _ := strings.Cut(rest, ":")
		name := before + cell + counter
		if alive[name]++; alive[name] > 2 {
			return fmt.Sprintf("%s has %d hashes in the tier of %s cells", counter, alive[name], cell)
		}
		coarsest := w.settings.layout.Tiers[len(w.settings.layout.Tiers)-1]
		if cell != window.FormatDuration(coarsest.Cell) {
			continue
		}
		names := before + ":names:" + epoch
		if _, listed := w.redis.get(names).value(counter); !listed {
			return fmt.Sprintf("%s has the hash %s and is not listed in %s", counter, key, names)
		}
		for _, f := range e.fields {
			if problem := w.checkSummary(before, coarsest, epoch, f, counter); problem != "" {
				return problem
			}
		}
	}
	return ""
}

// checkSummary compares a cell of a counter with the summary of its segment,
// which has room for all counters of a schedule and so knows the exact count.
// The levels of a schedule's tiers are the coarsest alone.
func (w *simWorld) checkSummary(shard string, t window.Tier, epoch string, cell simField, counter string) string {
	inEpoch := int64(2 * t.Window / t.Cell)
	e, _ := strconv.ParseInt(epoch, 10, 64)
	f, _ := strconv.ParseInt(cell.name, 10, 64)
	number := e*inEpoch + f
	grace := min(t.Window/4, 5*time.Minute)
	if expires := (number+1)*t.Cell.Milliseconds() + (t.Window + grace).Milliseconds(); expires <= simNow() {
		return ""
	}
	key := w.summaryKey(shard, t, number)
	if w.foreignKeys[key] {
		return ""
	}
	have := ""
	if summary := w.redis.get(key); summary != nil {
		have = summary.text
	}
	n, _ := strconv.ParseUint(cell.value, 10, 64)
	want := binary.AppendUvarint(append([]byte{byte(len(counter))}, counter...), n)
	// A count ends where the next length or the text does; no length of a name is also a letter of one.
	at := strings.Index(have, string(want[:1+len(counter)]))
	if at < 0 || !strings.HasPrefix(have[at:], string(want)) || have[1] != 0 {
		return fmt.Sprintf("%s has %s hits in segment %d of shard %s and the summary %s is %q", counter, cell.value, number, shard, key, have)
	}
	return ""
}

func (w *simWorld) summaryKey(shard string, t window.Tier, number int64) string {
	return fmt.Sprintf("%s:top:%s:%d:%s", shard, window.FormatDuration(t.Cell), number, simName)
}

// checkTop lets the production reader list the counters with most hits and all
// names, and compares that with the total of each counter.
func (w *simWorld) checkTop() string {
	defer w.redis.atOnce()() // one moment for all questions
	ctx := context.Background()
	all := window.Last(w.settings.layout.Tiers[len(w.settings.layout.Tiers)-1].Window)
	seen := map[string]bool{}
	for _, m := range w.messages {
		for _, h := range m.hits {
			for _, name := range append([]simHit{h}, h.others...) {
				seen[name.counter] = true
			}
		}
	}
	names := sortedKeys(seen)
	questions := make([]window.Question, len(names))
	for i, name := range names {
		questions[i] = window.Question{Counter: name, Span: all}
	}
	answers, err := w.reader.Answer(ctx, questions)
	if err != nil {
		return "the reader: " + err.Error()
	}
	const limit = 5
	top, err := w.reader.Top(ctx, all, limit)
	if err != nil {
		return "the top list: " + err.Error()
	}
	page, err := w.reader.Names(ctx, window.NamesQuestion{Limit: len(names) + 1})
	if err != nil {
		return "the names: " + err.Error()
	}
	listed := map[string]window.Answer{}
	for _, c := range top.Counters {
		listed[c.Counter] = c.Answer
	}
	for i, a := range answers.Answers {
		if w.foreignTop {
			break // the list may lack what a summary could not take in
		}
		if l, ok := listed[names[i]]; ok && l != a {
			return fmt.Sprintf("%s is listed with %+v and has %+v", names[i], l, a)
		} else if !ok && a.Upper > top.Floor {
			return fmt.Sprintf("%s has %+v and is not listed: %+v", names[i], a, top)
		}
		if slices.Contains(page.Counters, names[i]) != (a.Upper > 0) {
			return fmt.Sprintf("%s has %+v; the names are %q, next %q", names[i], a, page.Counters, page.Next)
		}
	}
	return ""
}

// checkRejects: each rejected item is stored once, at the end at the latest.
func (w *simWorld) checkRejects(all bool) string {
	w.stream.mu.Lock()
	defer w.stream.mu.Unlock()
	for _, m := range w.messages {
		due := m.fate == simHeld && all
		for _, k := range m.bad {
			if have := w.stream.rejected["body "+m.items[k]]; have > 1 || have == 0 && due {
				return fmt.Sprintf("%s: the reject %s is stored %d times", m, m.items[k], have)
			}
		}
	}
	return ""
}

// ask lets the production reader answer about hits that are missing because
// they were discarded: it must not call such an answer complete.
func (w *simWorld) ask(healed int64) string {
	defer w.redis.atOnce()()
	w.redis.mu.Lock()
	now := simNow()
	var questions []window.Question
	var hits []simHit
	longest := w.settings.layout.Tiers[len(w.settings.layout.Tiers)-1].Window.Milliseconds()
	for _, m := range w.messages {
		for _, h := range m.hits {
			if m.fate != simDiscarded || h.shared || h.others != nil || w.unknowable(m, h) || h.at >= now || now-h.at+1 > longest || w.count(h.cells[len(h.cells)-1]) > 0 {
				continue
			}
			hits = append(hits, h)
			questions = append(questions, window.Question{Counter: h.counter, Span: window.Between(h.at-1, window.Now)})
		}
	}
	discarded := len(hits)
	for _, h := range w.lostToForeign(now) {
		if now-h.at+1 <= longest && h.at < now {
			hits = append(hits, h)
			questions = append(questions, window.Question{Counter: h.counter, Span: window.Between(h.at-1, window.Now)})
		}
	}
	w.redis.mu.Unlock()
	for shard := range w.plan.shards { // one on each shard, for as_of
		for i := 0; ; i++ {
			counter := "any" + strconv.Itoa(i)
			if w.settings.layout.ShardOf(window.HashCounter([]byte(counter))) == shard {
				questions = append(questions, window.Question{Counter: counter, Span: window.Last(time.Second)})
				break
			}
		}
	}
	answers, err := w.reader.Answer(context.Background(), questions)
	if err != nil {
		return "the reader: " + err.Error()
	}
	if answers.AsOf <= healed {
		return fmt.Sprintf("the reader's as_of is %d, want more than %d", answers.AsOf, healed)
	}
	for i, h := range hits {
		if a := answers.Answers[i]; a.Complete && a.Upper < h.n {
			if i >= discarded {
				return fmt.Sprintf("%s was lost to a foreign key, and the answer from before it is called complete: %+v", h.counter, a)
			}
			return fmt.Sprintf("%s was discarded unread, and the answer from before it is called complete: %+v", h.counter, a)
		}
	}
	return ""
}

// unknowable reports whether nothing is left that tells of a discarded hit: its
// number is one that had been applied before the stream was rolled back; or its
// stream was replaced when no cursor knew of it, or Redis forgot, and it was
// dated after the new stream's beginning.
func (w *simWorld) unknowable(m *simMessage, h simHit) bool {
	return m.again || w.forgotten && m.stored < w.stream.created && h.at >= w.stream.created/1e6
}
