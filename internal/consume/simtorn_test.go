package consume

import (
	"maps"
	"slices"
	"time"
)

// tear kills Redis while it writes a transaction to its append-only file: the file ends with the
// transaction's first commands (the first one, and so many seventeenths of the others), and its next start
// runs none of them. The transaction that follows in the file will be run with them.
func (r *simRedis) tear(queued [][]string, seventeenths int) {
	piece := queued[:1+(len(queued)-1)*seventeenths/17]
	r.piece = slices.DeleteFunc(slices.Clone(piece), func(args []string) bool { return len(args) < 2 }) // TIME
	r.tornAt, r.followed, r.rewritten = time.Now(), false, false
	r.cutAll(nil)
}

// runTorn kills Redis once more. Its start runs the piece where it stands in the file: before everything that
// was written since. So a key that was deleted since stays deleted (see put), and a key in whose place
// something else has written gets the piece where it was moved to. Seen with Redis 7.0.15. Of the piece only
// the increments and registers matter: whatever follows writes the rest again.
func (r *simRedis) runTorn() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rewritten = false
	if r.piece == nil || !r.followed {
		return
	}
	piece, mark := r.piece, len(r.undo)
	r.piece = nil // what is put back below is not deleted
	inTheWay := map[string]*simEntry{}
	for _, args := range piece {
		if e := r.get(args[1]); e.isForeign() {
			inTheWay[args[1]] = e
			r.put(args[1], e.displaced)
		}
	}
	for _, args := range piece {
		if args[0] != "hincrby" && args[0] != "pfadd" && args[0] != "append" {
			continue
		}
		// Nothing has counted these hits since, so they are counted once. But the cursor has begun.
		if r.get(args[1]) == nil && args[2] != "opened" {
			continue
		}
		r.run(args, nil)
		if args[0] == "pfadd" || args[2] == "opened" {
			continue
		}
		changed := r.get(args[1]).copy()
		if changed.torn = maps.Clone(changed.torn); changed.torn == nil {
			changed.torn = map[string]simTorn{}
		}
		if args[0] == "append" {
			changed.fields = nil // it is a string
			for _, f := range parseSimLog(args[2]) {
				changed.torn[f.name] = simTorn{changed.torn[f.name].by + f.number(), r.tornAt}
			}
		} else {
			by := simField{args[2], args[3]}.number()
			changed.torn[args[2]] = simTorn{changed.torn[args[2]].by + by, r.tornAt}
		}
		r.put(args[1], changed)
	}
	for key, e := range inTheWay {
		foreign := *e
		foreign.displaced = r.get(key)
		r.put(key, &foreign)
	}
	r.committed(mark)
	r.cutAll(nil)
}

// simTorn is what torn transactions have added to a field, and when the last of them was torn.
type simTorn struct {
	by int64
	at time.Time
}

// tornInto is what torn transactions have added to a field.
func (e *simEntry) tornInto(field string) simTorn {
	if e == nil {
		return simTorn{}
	}
	return e.torn[field]
}

// persistence is what INFO says of the append-only file.
func (r *simRedis) persistence() string {
	last := "aof_last_rewrite_time_sec:-1\r\n"
	if r.rewritten {
		last = "aof_last_rewrite_time_sec:0\r\n"
	}
	return "# Persistence\r\nloading:0\r\naof_enabled:1\r\naof_rewrite_in_progress:0\r\naof_rewrite_scheduled:0\r\naof_last_bgrewrite_status:ok\r\n" + last
}

func (r *simRedis) rewrite() string {
	if !r.rewrites {
		return "-NOPERM this user has no permissions to run the 'bgrewriteaof' command\r\n"
	}
	r.piece, r.rewritten = nil, true
	return "+Background append only file rewriting started\r\n"
}

// countedTwice are the hits that a torn transaction may have counted once more: of the cells that it added
// to, those that were there when it was torn.
func (w *simWorld) countedTwice() (hits []simHit) {
	for _, m := range w.messages {
		for _, h := range m.hits {
			for _, c := range h.cells {
				torn := w.redis.get(c.key).tornInto(c.field)
				for e, f := range w.logFields(c) {
					if e.tornInto(f.name).by > 0 {
						torn = e.tornInto(f.name)
					}
				}
				if torn.by > 0 && !m.createdAt.After(torn.at) {
					hits = append(hits, h)
					break
				}
			}
		}
	}
	return hits
}
