package consume

import (
	"fmt"
	"strings"
)

// simForeignText is what something else than the program has written to a key.
const simForeignText = "foreign"

func (e *simEntry) isForeign() bool {
	return e != nil && (strings.HasPrefix(e.text, simForeignText) || len(e.fields) > 0 && e.fields[0].name == simForeignText)
}

// writeForeign puts a value of another type in place of what a key has.
func (r *simRedis) writeForeign(key string) {
	was := r.get(key)
	if was.isForeign() {
		return
	}
	mark := len(r.undo)
	foreign := &simEntry{text: simForeignText, expires: r.now() + 3_600_000, displaced: was}
	if strings.Contains(key, ":top:") || strings.Contains(key, "}:s:") && len(key)%2 == 0 {
		foreign.text, foreign.fields = "", []simField{{simForeignText, ""}}
	}
	r.put(key, foreign)
	r.committed(mark)
}

// mendForeign is a person who puts every key back to what it was.
func (r *simRedis) mendForeign() {
	mark := len(r.undo)
	for _, key := range sortedKeys(r.keys) {
		if e := r.get(key); e.isForeign() {
			r.put(key, e.displaced)
		}
	}
	r.committed(mark)
}

// foreign lets something else write to the key of a hash or of a summary that is
// about to be made, to a cursor, or to the claims.
func (w *simWorld) foreign(e simEvent) {
	if key := map[string]string{
		"foreign cursor": fmt.Sprintf("%s:{%d}:cursor:%s", simNamespace, e.worker%w.plan.shards, simName),
		"foreign claims": simClaims,
	}[e.kind]; key != "" {
		w.redis.mu.Lock()
		w.redis.writeForeign(key)
		w.redis.mu.Unlock()
		return
	}
	w.beforeStore = func(m *simMessage) {
		w.redis.mu.Lock()
		defer w.redis.mu.Unlock()
		for _, h := range m.hits {
			if h.shared || h.names != nil || len(h.cells) == 0 {
				continue
			}
			key := h.cells[e.n%len(h.cells)].key
			if log := w.logKey(h); log != "" && e.n%3 == 1 {
				key = log
			}
			if n := len(h.uniques); n > 0 && e.n%2 == 0 {
				key = h.uniques[e.n/2%n].key
			}
			if e.kind == "foreign summary" {
				coarsest := w.layout.Tiers[len(w.layout.Tiers)-1]
				length := w.segmentCells(coarsest) * coarsest.Cell.Milliseconds()
				key = w.summaryKey(fmt.Sprintf("%s:{%d}", simNamespace, h.shard), coarsest, floorTo(h.at, length))
				w.foreignTop = true
			}
			if w.redis.get(key) == nil { // what it replaced would be lost without a report
				w.redis.writeForeign(key)
				w.foreignKeys[key] = true
				m.foreign = true
			}
			return
		}
	}
	w.publish(e.n)
	w.beforeStore = nil
}

// floorTo is the number of the piece of this length that a moment lies in.
func floorTo(at, length int64) int64 {
	n := at / length
	if at%length < 0 {
		n--
	}
	return n
}

// lostToForeign returns the hits that a transaction could not add, if the worker has had the time to report
// the loss: a process has read of it, and neither that nor Redis has forgotten it. If anything was
// erased, it cannot tell them from erased ones.
func (w *simWorld) lostToForeign(now int64) (hits []simHit) {
	if w.redis.erasures > 0 {
		return nil
	}
	for _, m := range w.messages {
		if !m.foreign || m.fate != simHeld || m.id < w.unreported {
			continue
		}
		for _, h := range m.hits {
			for _, c := range h.cells {
				if !w.isUnheard(h, c) && (w.foreignKeys[c.key] || w.foreignKeys[w.logKey(h)]) && w.count(c) == 0 && w.holds(c.tier, h, now) {
					hits = append(hits, h)
					break
				}
			}
		}
	}
	return hits
}

// isUnheard reports whether a transaction wrote to a foreign key in place of a cell, and no process has read
// so.
func (w *simWorld) isUnheard(h simHit, c simCell) bool {
	return w.redis.unheard[c.key] || w.redis.unheard[w.logKey(h)]
}
