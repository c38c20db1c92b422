package consume

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"tallyroll/internal/unique"
	"tallyroll/internal/window/erase"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"
)

// What an erasure removes stays in the model under a key of its own, so that each message is still counted at
// most once, and once where it has to be: in its cells or there. Nothing in Redis has such a name.
const simErased = "erased "

// simErasedAt and a register's index are the field with the moment at which the register was last erased.
const simErasedAt = "at "

// unlink removes keys, and keeps what their cells had.
func (r *simRedis) unlink(keys []string) (n int64) {
	for _, key := range keys {
		e := r.get(key)
		if e == nil {
			continue
		}
		n++
		if kept := r.keys[simErased+key].copy(); !e.isForeign() && strings.Contains(key, "}:u:") {
			for _, f := range e.fields {
				if unique.Register(kept.number(f.name)) < unique.Register(e.number(f.name)) {
					kept.set(f.name, f.value)
				}
				kept.set(simErasedAt+f.name, strconv.FormatInt(time.Now().UnixNano(), 10))
			}
			r.put(simErased+key, kept)
		} else if !e.isForeign() {
			for _, f := range append(simLogFields(key, e), e.fields...) {
				kept.set(f.name, strconv.FormatInt(kept.number(f.name)+f.number(), 10))
			}
			for name, torn := range e.torn {
				kept.set(name, strconv.FormatInt(kept.number(name)-torn.by, 10))
			}
			r.put(simErased+key, kept)
		}
		r.put(key, nil)
	}
	return n
}

// erasedFrom is what erasures have removed from a cell.
func (r *simRedis) erasedFrom(c simCell) int64 {
	if r.erasures == 0 {
		return 0
	}
	n := r.keys[simErased+c.key].number(c.field)
	for i, key := range c.logs {
		if e := r.keys[simErased+key]; key != "" && e != nil {
			for _, f := range e.fields {
				if c.hasLogged(i, f) {
					n += f.number()
				}
			}
		}
	}
	return n
}

// erasing calls checkErased after a transaction that has removed counters.
func (r *simRedis) erasing(queued [][]string) {
	for _, q := range queued {
		if q[0] == "zrem" {
			r.erasures++
			r.checkErased(q[2:])
			return
		}
	}
}

// erase lets production code erase counters that get more hits, or have just got some, or all.
func (w *simWorld) erase(e simEvent) {
	var counters []string
	prefix := [...]string{"shared", "", w.named("m"), "shared"}[e.n%4]
	if e.n%4 == 3 {
		prefix, counters = "", []string{"shared0", "shared1", "nobody"}
		for _, m := range w.messages[max(0, len(w.messages)-3):] {
			for _, h := range m.hits {
				counters = append(counters, h.counter)
			}
		}
	}
	p := &simProcess{}
	w.redis.mu.Lock()
	switch e.worker {
	case 1:
		w.redis.execFault[p] = simExecFault{kind: "late request", delay: e.d}
	case 2:
		w.redis.lookFault[p] = simLookFault{"look held up", e.lookedAt() % 2, min(e.d, 4*time.Second)} // before it reads the summaries of a shard
	}
	w.redis.mu.Unlock()
	w.erasers.Add(1)
	w.running.Go(func() {
		defer w.erasers.Add(-1)
		ctx, cancel := context.WithTimeout(w.living, 20*time.Second)
		defer cancel()
		client := w.redis.client(w.server.Options().Simple(), p)
		defer client.Close()
		reader := read.NewReader(schema.NewStore(client, simNamespace))
		if counters != nil {
			_, _ = erase.Eraser{Reader: reader}.Erase(ctx, counters) // whatever goes wrong: what is not erased stays
			return
		}
		for next := ""; ; {
			erased, err := erase.Eraser{Reader: reader}.EraseListed(ctx, prefix, next)
			if next = erased.Next; err != nil || next == "" {
				return
			}
		}
	})
}

// checkErased notes if anything is left of counters that have just been removed. The caller holds redis.mu.
// Once Redis has forgotten that it has a stream, an eraser does not know of the stream's summaries until a
// worker has listed it again: they then have too much.
func (w *simWorld) checkErased(counters []string) {
	_, listed := w.redis.get(simNamespace + ":streams").value(simName)
	for key, e := range w.redis.keys {
		if e.isForeign() || e.expires != 0 && e.expires <= w.redis.latest() {
			continue
		}
		is := w.meaning(key)
		for _, counter := range counters {
			left := (is.cells || is.log) && is.counter == counter || is.uniques && strings.HasSuffix(key, ":"+counter)
			if strings.Contains(key, "names:") {
				_, left = e.value(counter)
			}
			if strings.Contains(key, ":top:") {
				left = strings.Contains(e.text, string([]byte{byte(len(counter))})+counter)
				if left && !listed && w.forgotten {
					left, w.foreignKeys[key], w.foreignTop = false, true, true
				}
			}
			if left {
				w.holdProblem = fmt.Sprintf("%s was erased, and %s still has it: at %d, expires %d, has %q", counter, key, w.redis.latest(), e.expires, e.text)
			}
		}
	}
}
