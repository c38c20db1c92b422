package consume

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"tallyroll/internal/platform/human"
	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
)

// asOf is the earliest as_of of all shards; 0 where one has no cursor.
func (w *simWorld) asOf() int64 { return slices.Min(w.asOfs()) }

// asOfs are the as_of of each shard, as readers find them.
func (w *simWorld) asOfs() []int64 {
	w.redis.mu.Lock()
	defer w.redis.mu.Unlock()
	return w.asOfsLocked()
}

func (w *simWorld) asOfsLocked() (out []int64) {
	claim := w.redis.claim()
	for shard := range w.plan.shards {
		out = append(out, claim.Renew(w.cursor(shard)).AsOf)
	}
	return out
}

// renewed reports whether all cursors have passed a moment themselves, whatever is claimed.
func (w *simWorld) renewed(since int64) bool {
	w.redis.mu.Lock()
	defer w.redis.mu.Unlock()
	for shard := range w.plan.shards {
		if w.cursor(shard).AsOf <= since {
			return false
		}
	}
	return true
}

// isRead reports whether all cursors are at the end of the stream, and the worker has had the time to take it
// again if its consumer was lost.
func (w *simWorld) isRead() bool {
	w.redis.mu.Lock()
	defer w.redis.mu.Unlock()
	w.stream.mu.Lock()
	defer w.stream.mu.Unlock()
	if time.Since(w.stream.noticed) < 3*time.Second {
		return false
	}
	for shard := range w.plan.shards {
		if c := w.cursor(shard); c.Created != w.stream.created || c.Seq < w.stream.last {
			return false
		}
	}
	return true
}

// cursor is what Redis has of a shard's cursor. The caller holds its lock.
func (w *simWorld) cursor(shard int) window.Cursor {
	e := w.redis.get(simNamespace + ":{" + strconv.Itoa(shard) + "}:cursor:" + simName)
	return window.Cursor{Created: e.number("created"), Seq: uint64(e.number("seq")), Stored: e.number("stored"), AsOf: e.number("as_of")}
}

type simBounds struct{ lower, upper int64 }

// simState changes with whatever a check looks at, except for time.
type simState struct{ messages, changes, rejects int }

func (w *simWorld) state() simState {
	w.stream.mu.Lock()
	defer w.stream.mu.Unlock()
	return simState{len(w.messages), w.redis.changes, w.stream.rejects}
}

// check compares the data with what was published: each message is counted at
// most once, and once where it has to be: at the end (all), or where as_of says so. As time goes by and
// nothing changes, a check only becomes more lenient, until the first key expires.
func (w *simWorld) check(all bool) string {
	w.redis.mu.Lock()
	defer w.redis.mu.Unlock()
	now := w.redis.latest()
	state := w.state()
	if !all && state == w.checked && now < w.expires {
		return ""
	}
	w.checked = state
	asOf := w.asOfsLocked()
	shared, overflows := map[simCell]simBounds{}, map[simCell]simBounds{}
	for _, m := range w.messages {
		if problem := w.checkWays(m, now, all, asOf); problem != "" {
			return problem
		}
		for _, h := range m.hits {
			if h.names != nil {
				if problem := w.checkNames(m, h, now, all, asOf); problem != "" {
					return problem
				}
				continue
			}
			due := m.due(all, asOf[h.shard])
			if problem := w.checkUniques(m, h, due, now); problem != "" {
				return problem
			}
			for _, c := range h.cells {
				if !w.holds(c.tier, h, now) {
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
				if have == 0 && w.isBounded(h) {
					if o := w.overflowOf(h); w.holds(c.tier, simHit{at: h.at}, now) { // without jitter: none of the hits has lapsed
						at := w.place(o, c.tier, w.layout.Tiers[c.tier])
						b := overflows[at]
						if b.upper += h.n; due {
							b.lower += h.n
							w.refused[h.counter] = h.at
						}
						overflows[at] = b
					}
					continue
				}
				if have == h.n || have == 0 && (!due || w.foreignKeys[c.key] || w.foreignKeys[w.logKey(h)]) {
					continue
				}
				return fmt.Sprintf("%s: %s of shard %d has %d in field %s of %s, want %d (all %v, as_of of the shard is %dms after the message, fate %d)",
					m, h.counter, h.shard, have, c.field, c.key, h.n, all, asOf[h.shard]-m.stored/1e6, m.fate)
			}
		}
	}
	for _, m := range w.ended { // which may have lost hits with their streams: checkAllHits finds what a commit loses
		for _, h := range m.hits {
			for _, c := range h.cells {
				if b, ok := shared[c]; ok && h.shared {
					b.upper += h.n
					shared[c] = b
				}
			}
		}
	}
	for c, b := range shared {
		if have := w.count(c); have < b.lower || have > b.upper {
			return fmt.Sprintf("field %s of %s has %d, want %d to %d (all %v)", c.field, c.key, have, b.lower, b.upper, all)
		}
	}
	for c, b := range overflows {
		have := w.count(c)
		if have > 0 {
			simOverflows.Add(1)
		}
		if have < b.lower || have > b.upper {
			return fmt.Sprintf("field %s of %s, an overflow, has %d, want %d to %d (all %v)", c.field, c.key, have, b.lower, b.upper, all)
		}
	}
	if w.holdProblem != "" {
		return w.holdProblem
	}
	if problem := w.checkKeys(all); problem != "" {
		return problem
	}
	if problem := w.checkRegisters(); problem != "" {
		return problem
	}
	if problem := w.checkAllHits(now); problem != "" {
		return problem
	}
	if problem := w.checkEnded(); problem != "" {
		return problem
	}
	return w.checkRejects(all)
}

// due reports whether a message has to be counted, in the end (all) or because as_of says so.
//
// If the clock of NATS was set back, as_of says nothing of messages that are stored in the time that comes
// again until it has passed that time. And if the stream was rolled back as well, messages that took the
// sequences of those that were rolled away may be taken for them.
func (m *simMessage) due(all bool, asOf int64) bool {
	if m.fate != simHeld || m.again && (m.repeats > 0 || m.overtook) {
		return false
	}
	return all || m.stored/1e6 < asOf && m.repeats/1e6 < asOf
}

// checkNames: a hit that its message's subject names is counted under one of the names
// that the subject can give, in all tiers.
func (w *simWorld) checkNames(m *simMessage, h simHit, now int64, all bool, asOf []int64) string {
	due, counted, several := true, "", false
	for i := range h.names {
		due = due && m.due(all, asOf[h.names[i].shard])
	}
	for tier := range h.cells {
		sum, alive := int64(0), true
		for i := range h.names {
			name := &h.names[i]
			if alive = alive && w.holds(tier, *name, now); !alive {
				break // past its deadline
			}
			if n := w.count(name.cells[tier]); n > 0 {
				sum += n
				several = several || counted != "" && counted != name.counter
				counted = name.counter
			}
		}
		if alive && sum != h.n && (sum != 0 || due) || several {
			return fmt.Sprintf("%s: the hit that its subject names is counted %d times, lastly as %q, in tier %d, want %d (all %v, fate %d)",
				m, sum, counted, tier, h.n, all, m.fate)
		}
	}
	return ""
}

// count is what a cell has counted: also what was erased from it, and not what a torn transaction has added
// to it.
func (w *simWorld) count(c simCell) int64 {
	e := w.redis.get(c.key)
	return e.number(c.field) - e.tornInto(c.field).by + w.redis.erasedFrom(c) + w.logged(c)
}

// checkKeys: everything expires but the layout, the list of streams, the last erasures and the cursors, which
// all last in the end, even if a worker took the stream for ended; a counter has no more hashes in a tier
// than may be alive, its name is listed, and the summaries say of it what its hashes do.
func (w *simWorld) checkKeys(all bool) string {
	alive, segments := w.alive, w.segments
	clear(alive)
	clear(segments)
	coarsest := len(w.layout.Tiers) - 1
	w.expires = math.MaxInt64
	for key := range w.redis.keys {
		e := w.redis.get(key)
		if e != nil && e.expires != 0 {
			w.expires = min(w.expires, e.expires)
		}
		if e == nil || e.isForeign() {
			continue
		}
		is := w.meaning(key)
		if e.expires == 0 && !is.lasts {
			return key + " has no expiry"
		}
		if all && e.expires != 0 && is.cursor {
			return key + " is the cursor of a stream that is read, and expires"
		}
		if !is.cells && !is.log {
			continue
		}
		of := simHashes{is.shard, is.counter, is.tier}
		if alive[of]++; alive[of] > w.mostAlive[is.tier] {
			return fmt.Sprintf("%s has %d hashes in tier %s, more than %d", is.counter, alive[of], w.layout.Tiers[is.tier], w.mostAlive[is.tier])
		}
		if is.tier != coarsest || is.counter == window.AllHits {
			continue // it is in no list
		}
		// If the clock of Redis was ahead, it may have shown the deadline of both, and only the names were
		// looked at then.
		lapsed := e.expires != 0 && e.expires <= w.redis.latest()
		if _, listed := w.redis.get(is.names).value(is.counter); !listed && !lapsed {
			return fmt.Sprintf("%s has the hash %s and is not listed in %s", is.counter, key, is.names)
		}
		if strings.HasPrefix(is.counter, simEndedPrefix) || w.ofTwo[is.counter] {
			continue // another stream's summary tells of it
		}
		for _, f := range e.fields {
			cell, n := w.cell(w.layout.Tiers[coarsest], is.epoch, f)
			n -= e.tornInto(f.name).by
			segments[simSegment{is.shard, is.counter, cell / w.segmentCells(w.layout.Tiers[coarsest])}] += n
		}
		for _, f := range simLogFields(key, e) {
			cell := w.logMoment(is.epoch, f) / w.layout.Tiers[coarsest].Cell.Milliseconds()
			segments[simSegment{is.shard, is.counter, cell / w.segmentCells(w.layout.Tiers[coarsest])}] += f.number()
		}
		for name, torn := range e.torn {
			if is.log {
				cell := w.logMoment(is.epoch, simField{name: name}) / w.layout.Tiers[coarsest].Cell.Milliseconds()
				segments[simSegment{is.shard, is.counter, cell / w.segmentCells(w.layout.Tiers[coarsest])}] -= torn.by
			}
		}
	}
	for s, n := range segments {
		if n == 0 {
			continue // the first commands of a torn transaction made the cell; its summary comes when it is repeated
		}
		if problem := w.checkSummary(s, n); problem != "" {
			return problem
		}
	}
	return ""
}

// simHashes are the hashes of a counter in a tier.
type simHashes struct {
	shard, counter string
	tier           int
}

// simMeaning is what the name of a key says.
type simMeaning struct {
	lasts  bool // it may have no expiry
	cursor bool

	uniques bool // it is a unique cell
	cells   bool // it is a hash of cells, of which the rest tells
	log     bool // it is a sparse log, of which the rest tells; its tier is the coarsest
	shard   string
	tier    int
	epoch   int64
	counter string
	names   string // the key that lists the counter, if the tier is the coarsest
}

// meaning remembers what it finds: every check looks at every key.
func (w *simWorld) meaning(key string) *simMeaning {
	is := w.meanings[key]
	if is == nil {
		is = w.newMeaning(key)
		w.meanings[key] = is
	}
	return is
}

func (w *simWorld) newMeaning(key string) *simMeaning {
	if strings.HasPrefix(key, simErased) {
		return &simMeaning{lasts: true}
	}
	is := &simMeaning{cursor: strings.HasSuffix(key, "}:cursor:"+simName)}
	is.lasts = strings.Contains(key, "}:cursor:") || strings.HasSuffix(key, "}:erased") || slices.Contains([]string{simNamespace + ":layout", simNamespace + ":layout:copy", simNamespace + ":streams", simNamespace + ":rules"}, key)
	is.uniques = strings.Contains(key, "}:u:")
	tiers := w.layout.Tiers
	if shard, rest, log := strings.Cut(key, ":s:"); log {
		epoch, counter, _ := strings.Cut(rest, ":")
		is.log, is.shard, is.counter, is.tier = true, shard, counter, len(tiers)-1
		is.epoch, _ = strconv.ParseInt(epoch, 10, 64)
		is.names = w.namesKey(shard, is.epoch*w.logSpan())
		return is
	}
	shard, rest, cells := strings.Cut(key, ":h:")
	if !cells {
		return is
	}
	cell, rest, _ := strings.Cut(rest, ":")
	epoch, counter, _ := strings.Cut(rest, ":")
	is.cells, is.shard, is.counter = true, shard, counter
	is.tier = slices.IndexFunc(tiers, func(t window.Tier) bool { return human.FormatDuration(t.Cell) == cell })
	is.epoch, _ = strconv.ParseInt(epoch, 10, 64)
	if t := tiers[is.tier]; is.tier == len(tiers)-1 {
		is.names = w.namesKey(shard, is.epoch*w.span(t)*t.Cell.Milliseconds())
	}
	return is
}

// mostAliveOf is how many hashes of a counter can be alive at a time: the one that fills, and those that
// ended less than a window, the grace, the jitter, and the second to which a deadline is rounded up, ago.
func (w *simWorld) mostAliveOf(t window.Tier) int64 {
	span := w.span(t) * t.Cell.Milliseconds()
	kept := (t.Window + simGrace(t)).Milliseconds() + min(t.Window.Milliseconds()/4, span) + 999
	return max(2, (kept+span-1)/span+1)
}

// cell is the number of a cell since 1970, and what it has counted.
func (w *simWorld) cell(t window.Tier, epoch int64, f simField) (number, n int64) {
	field, _ := strconv.ParseInt(f.name, 10, 64)
	n, _ = strconv.ParseInt(f.value, 10, 64)
	return epoch*w.span(t) + field, n
}

// simSegment is a segment of a shard (the beginning of its keys), and a counter.
type simSegment struct {
	shard, counter string
	number         int64
}

// segmentCells is the documented length of a segment: as many cells as hashes it takes to span two windows.
func (w *simWorld) segmentCells(t window.Tier) int64 {
	cells := int64(2 * t.Window / t.Cell)
	return (cells + w.span(t) - 1) / w.span(t)
}

// checkSummary compares the hits that a counter's cells have in a segment with the segment's summary,
// which has room for all counters of a schedule and so knows the exact count.
// The levels of a schedule's tiers are the coarsest alone.
func (w *simWorld) checkSummary(s simSegment, hits int64) string {
	t := w.layout.Tiers[len(w.layout.Tiers)-1]
	kept := (t.Window + simGrace(t)).Milliseconds()
	first := s.number * w.segmentCells(t) // of its cells
	if expires := (first+w.segmentCells(t))*t.Cell.Milliseconds() + kept; expires <= w.redis.latest() {
		return ""
	}
	if ends := (first/w.span(t)+1)*w.span(t)*t.Cell.Milliseconds() + kept; ends <= w.redis.latest() && w.segmentCells(t) > 1 {
		return "" // the hash of its first cells may have expired already
	}
	key := w.summaryKey(s.shard, t, s.number)
	if w.foreignKeys[key] {
		return ""
	}
	have := ""
	if summary := w.redis.get(key); summary != nil {
		have = summary.text
	}
	want := binary.AppendUvarint(append([]byte{byte(len(s.counter))}, s.counter...), uint64(hits))
	// A count ends where the next length or the text does; no length of a name is also a letter of one.
	at := strings.Index(have, string(want[:1+len(s.counter)]))
	if at < 0 || !strings.HasPrefix(have[at:], string(want)) || have[1] != 0 {
		return fmt.Sprintf("%s has %d hits in segment %d of shard %s and the summary %s is %q", s.counter, hits, s.number, s.shard, key, have)
	}
	return ""
}

func (w *simWorld) summaryKey(shard string, t window.Tier, number int64) string {
	return shard + ":top:" + human.FormatDuration(t.Cell) + ":" + strconv.FormatInt(number, 10) + ":" + simName
}

// checkAllHits: the sum of all hits has what the counters of its shard have counted together, erased ones
// included, without excluded hits, for as long as its hash is there. If something else has written to a key,
// it has more.
func (w *simWorld) checkAllHits(now int64) string {
	if len(w.foreignKeys) > 0 {
		return ""
	}
	sums, seen := map[simCell]int64{}, map[simCell]bool{}
	add := func(h simHit) {
		for _, c := range h.cells {
			if seen[c] || !w.holds(c.tier, simHit{at: h.at}, now) {
				continue
			}
			seen[c] = true
			sums[w.place(simHit{shard: h.shard, at: h.at}, c.tier, w.layout.Tiers[c.tier])] += w.count(c) % simExcluded
		}
	}
	for _, m := range slices.Concat(w.messages, w.ended) {
		for _, h := range m.hits {
			add(h)
			for _, name := range h.names {
				add(name)
			}
			if w.isBounded(h) {
				o := w.overflowOf(h)
				for i, t := range w.layout.Tiers {
					o.cells = append(o.cells, w.place(o, i, t))
				}
				add(o)
			}
		}
		for _, way := range m.ways {
			for _, h := range way.hits {
				add(h)
			}
		}
	}
	for c, want := range sums {
		if have := w.count(c); have != want {
			return fmt.Sprintf("field %s of %s, the sum of all hits, has %d, and the counters have %d", c.field, c.key, have, want)
		}
	}
	return ""
}

// checkTop lets the production reader list the counters with most hits and all
// names, and compares that with the total of each counter.
func (w *simWorld) checkTop() string {
	defer w.redis.atOnce()() // one moment for all questions
	ctx := context.Background()
	all := window.Last(w.layout.Tiers[len(w.layout.Tiers)-1].Window)
	const limit = 5
	top, err := w.reader.Top(ctx, all, limit)
	if err != nil {
		return "the top list: " + err.Error()
	}
	counted := w.coarsestCells()
	page, err := w.reader.Names(ctx, read.NamesQuestion{Limit: 10_000})
	if err != nil {
		return "the names: " + err.Error()
	}
	asked := map[string]bool{"nobody": true} // counted or named anywhere, and one that is not
	for counter := range counted {
		asked[counter] = true
	}
	for _, counter := range page.Counters {
		asked[counter] = true
	}
	for counter := range w.refused {
		asked[counter] = true
	}
	listed := map[string]window.Answer{}
	for _, c := range top.Counters {
		listed[c.Counter] = c.Answer
		asked[c.Counter] = true
	}
	names := sortedKeys(asked)
	questions := make([]window.Question, len(names))
	for i, name := range names {
		questions[i] = window.Question{Counter: name, Span: all}
	}
	answers, err := w.reader.Answer(ctx, questions)
	if err != nil {
		return "the reader: " + err.Error()
	}
	for i, a := range answers.Answers {
		if w.foreignTop {
			break // the list may lack what a summary could not take in
		}
		if l, ok := listed[names[i]]; ok && l != a {
			return fmt.Sprintf("%s is listed with %+v and has %+v", names[i], l, a)
		} else if !ok && a.Upper > top.Floor && names[i] != window.AllHits {
			return fmt.Sprintf("%s has %+v and is not listed: %+v", names[i], a, top)
		}
		has := a.Upper > 0
		if a.Overflow != "" {
			_, own := inRange(counted[names[i]], a.Range)
			has = own > 0
		}
		if names[i] != window.AllHits && slices.Contains(page.Counters, names[i]) != has {
			return fmt.Sprintf("%s has %+v; the names are %q, next %q", names[i], a, page.Counters, page.Next)
		}
	}
	for i, a := range answers.Answers {
		lower, upper := inRange(counted[names[i]], a.Range)
		if a.Overflow != "" {
			_, more := inRange(counted[a.Overflow], a.Range)
			upper += more
		} else if at := w.refused[names[i]]; at >= a.Range.From && at < a.Range.To && !w.plan.needsPerson() {
			return fmt.Sprintf("%s has %+v, and hits at %d that are in an overflow", names[i], a, at)
		}
		if a.Lower != lower || a.Upper != upper {
			return fmt.Sprintf("%s has %+v; its cells have %d to %d hits", names[i], a, lower, upper)
		}
	}
	return ""
}

// simCounted is what a cell has counted, from its beginning to its end in Unix milliseconds.
type simCounted struct{ from, to, n int64 }

// coarsestCells are the cells of the coarsest tier, by counter.
func (w *simWorld) coarsestCells() map[string][]simCounted {
	w.redis.mu.Lock()
	defer w.redis.mu.Unlock()
	coarsest := len(w.layout.Tiers) - 1
	t := w.layout.Tiers[coarsest]
	counted := map[string][]simCounted{}
	for key := range w.redis.keys {
		is, e := w.meaning(key), w.redis.get(key)
		if e != nil && is.log && !e.isForeign() {
			for _, f := range simLogFields(key, e) {
				from := w.logMoment(is.epoch, f)
				counted[is.counter] = append(counted[is.counter], simCounted{from, from + w.logCell(), f.number()})
			}
		}
		if !is.cells || is.tier != coarsest || e == nil || e.isForeign() {
			continue
		}
		for _, f := range e.fields {
			cell, n := w.cell(t, is.epoch, f)
			from := cell * t.Cell.Milliseconds()
			counted[is.counter] = append(counted[is.counter], simCounted{from, from + t.Cell.Milliseconds(), n})
		}
	}
	return counted
}

// inRange adds up the cells that lie in a range that ends now. lower leaves out the one that its
// beginning cuts.
func inRange(cells []simCounted, r window.Range) (lower, upper int64) {
	for _, c := range cells {
		if c.to <= r.From || c.from >= r.To {
			continue
		}
		if upper += c.n; c.from >= r.From {
			lower += c.n
		}
	}
	return lower, upper
}

// checkRejects: each rejected item is stored once, at the end at the latest.
func (w *simWorld) checkRejects(all bool) string {
	w.stream.mu.Lock()
	defer w.stream.mu.Unlock()
	for _, m := range w.messages {
		due := m.due(all, 0)
		for _, k := range m.bad {
			if have := w.stream.bodies[m.items[k]]; have > 1 || have == 0 && due {
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
	now, latest := w.redis.now(), w.redis.latest()
	var questions []window.Question
	var hits []simHit
	longest := w.layout.Tiers[len(w.layout.Tiers)-1].Window.Milliseconds()
	for _, m := range w.messages {
		for _, h := range m.hits {
			unheard := func(c simCell) bool { return w.isUnheard(h, c) }
			if w.isBounded(h) {
				continue // its hits may be in the overflow
			}
			if m.foreign && (m.id < w.unreported || slices.ContainsFunc(h.cells, unheard)) {
				continue // counted into a foreign key, and the reply was lost, or a crash came before the report
			}
			if m.fate != simDiscarded || h.shared || h.names != nil || w.unknowable(m, h) || h.at >= now || now-h.at+1 > longest || w.count(h.cells[len(h.cells)-1]) > 0 || !w.holds(len(w.single)-1, h, latest) {
				continue
			}
			hits = append(hits, h)
			questions = append(questions, window.Question{Counter: h.counter, Span: window.Between(h.at-1, window.Now)})
		}
	}
	for _, h := range w.lostWithStreams(latest) {
		if now-h.at+1 <= longest && h.at < now {
			hits = append(hits, h)
			questions = append(questions, window.Question{Counter: h.counter, Span: window.Between(h.at-1, window.Now)})
		}
	}
	discarded := len(hits)
	for _, h := range w.lostToForeign(latest) {
		if now-h.at+1 <= longest && h.at < now {
			hits = append(hits, h)
			questions = append(questions, window.Question{Counter: h.counter, Span: window.Between(h.at-1, window.Now)})
		}
	}
	for _, h := range w.expiredEarly(now) {
		if now-h.at+1 <= longest && h.at < now {
			hits = append(hits, h)
			questions = append(questions, window.Question{Counter: h.counter, Span: window.Between(h.at-1, window.Now)})
		}
	}
	lost := len(hits)
	for _, h := range slices.Concat(w.countedTwice(), w.lostUniques(latest)) {
		if now-h.at+1 <= longest && h.at < now {
			hits = append(hits, h)
			questions = append(questions, window.Question{Counter: h.counter, Span: window.Between(h.at-1, window.Now)})
		}
	}
	w.redis.mu.Unlock()
	for shard := range w.plan.shards { // one on each shard, for as_of
		for i := 0; ; i++ {
			counter := "any" + strconv.Itoa(i)
			if w.layout.ShardOf(window.HashCounter([]byte(counter))) == shard {
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
		a := answers.Answers[i]
		if i >= lost && a.Complete {
			return fmt.Sprintf("%s was counted twice by a torn transaction, or lacks its unique value, and the answer is called complete: %+v", h.counter, a)
		}
		if a.Complete && a.Upper < h.n {
			if i >= discarded {
				return fmt.Sprintf("%s was lost to a foreign key or a clock that was ahead, and the answer from before it is called complete: %+v", h.counter, a)
			}
			return fmt.Sprintf("%s was discarded unread, and the answer from before it is called complete: %+v", h.counter, a)
		}
	}
	return ""
}

// expiredEarly are the hits that are in no cell because the clock of Redis was ahead, if the worker that is
// left has seen that in a commit to their shard.
func (w *simWorld) expiredEarly(now int64) (hits []simHit) {
	for _, m := range w.messages {
		for _, h := range m.hits {
			aheadTo := w.redis.aheadTo[w.slots[0]][fmt.Sprintf("%s:{%d}", simNamespace, h.shard)]
			if !m.due(true, 0) || m.foreign || h.shared || h.names != nil || aheadTo == 0 {
				continue
			}
			for _, c := range h.cells {
				if w.count(c) == 0 && w.holds(c.tier, h, now) && !w.holds(c.tier, h, aheadTo) {
					hits = append(hits, h)
					break
				}
			}
		}
	}
	return hits
}

// unknowable reports whether no trace of a discarded hit is left: its stream was replaced before a cursor of
// it was written, or Redis forgot, and it was dated after counting seems to have begun; or the clock of NATS
// was set back to before the moment at which it was stored, or had been, and its message took the sequence of
// one that was rolled away; or sequences may be missing since, and no cursor is older. An operator who
// declares afterwards that nothing is missing does not know it.
func (w *simWorld) unknowable(m *simMessage, h simHit) bool {
	return m.hidden && w.forgotten || m.overtook || m.again && m.repeats > 0 || w.forgotten && m.stored < w.stream.created && (h.at >= w.began() || m.id < w.vouched)
}

// began is when counting began, as far as what is left tells: when the stream was created, or another one
// before it.
func (w *simWorld) began() int64 {
	at := w.stream.created / 1e6
	for _, m := range w.ended {
		at = min(at, m.stored/1e6-1) // its stream is a little older
	}
	return at
}
