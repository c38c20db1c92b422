package consume

import (
	"encoding/binary"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// tear kills Redis while it writes a transaction to its append-only file: the file ends with the
// transaction's first commands (the first one, and so many seventeenths of the others), and its next start
// runs none of them. The transaction that follows in the file will be run with them.
func (r *simRedis) tear(queued [][]string, seventeenths int) {
	piece := queued[:1+(len(queued)-1)*seventeenths/17]
	r.piece = slices.DeleteFunc(slices.Clone(piece), func(args []string) bool { return len(args) < 2 }) // TIME
	r.tornAt, r.followed, r.rewritten = time.Now(), false, false
	r.tornMark, r.since = len(r.undo), nil
	r.cutAll(nil)
}

// simSince is a command, or what became of a key.
type simSince struct {
	args  []string
	key   string
	entry *simEntry
}

// note adds to what the file has after the piece.
func (r *simRedis) note(s simSince) {
	if r.piece == nil || r.loading {
		return
	}
	if s.args == nil || slices.Contains([]string{"set", "setnx", "hset", "hincrby", "append", "expireat", "expire", "persist", "zadd", "zrem", "unlink", "del", "pfadd"}, strings.ToLower(s.args[0])) {
		r.since = append(r.since, s)
	}
}

// isFold reports whether a command of a piece is one of a fold.
func isFold(args []string) bool {
	return args[0] == "hset" && strings.Contains(args[1], "}:h:") || args[0] == "set" && len(args) == 5 && strings.Contains(args[1], "}:s:")
}

// runTorn kills Redis once more. Its start runs the piece where it stands in the file: before everything that
// was written since. Seen with Redis 7.0.15.
func (r *simRedis) runTorn() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rewritten = false
	if r.piece == nil || !r.followed {
		return
	}
	mark := len(r.undo)
	present := map[string]bool{}
	for _, args := range r.piece {
		present[args[1]] = r.get(args[1]) != nil
	}
	r.loading = true
	was := map[string]*simEntry{}
	for i := len(r.undo) - 1; i >= r.tornMark; i-- {
		was[r.undo[i].key] = r.undo[i].was
	}
	for _, key := range sortedKeys(was) {
		r.put(key, was[key])
	}
	torn := func(key string, fields []simField) {
		e := r.get(key)
		if e == nil || len(fields) == 0 {
			return
		}
		changed := *e
		if changed.torn = maps.Clone(changed.torn); changed.torn == nil {
			changed.torn = map[string]simTorn{}
		}
		for _, f := range fields {
			changed.torn[f.name] = simTorn{changed.torn[f.name].by + f.number(), r.tornAt}
		}
		r.put(key, &changed)
	}
	lastSet := -1
	for i, args := range r.piece {
		if isFold(args) && args[0] == "set" {
			lastSet = i
		}
	}
	set := map[string]bool{}
	for i, args := range r.piece {
		// Nothing has counted these hits since, so they are counted once. But the cursor has begun.
		if !isFold(args) && !set[args[1]] && !present[args[1]] && !(len(args) > 2 && args[2] == "opened") {
			continue
		}
		set[args[1]] = set[args[1]] || isFold(args)
		e := r.get(args[1])
		switch {
		case isFold(args) && e.isForeign():
		case isFold(args) && args[0] == "hset":
			var by []simField
			if i > lastSet { // it is half a fold
				for k := 2; k < len(args); k += 2 {
					by = append(by, simField{args[k], strconv.FormatInt(simField{args[k], args[k+1]}.number()-e.number(args[k]), 10)})
				}
			}
			before := e.copy().torn
			r.run(args, nil)
			changed := r.get(args[1]).copy()
			changed.torn = before
			r.put(args[1], changed)
			torn(args[1], by)
		case isFold(args):
			kept, _ := r.kept(args[1], e)
			r.run(args, nil)
			torn(args[1], parseSimLog(args[2][1+len(kept):]))
		case args[0] == "hincrby":
			if r.run(args, nil); args[2] != "opened" {
				torn(args[1], []simField{{args[2], args[3]}})
			}
		case args[0] == "append":
			r.run(args, nil)
			torn(args[1], parseSimLog(args[2]))
		case args[0] == "pfadd", args[0] == "expireat", args[0] == "set" && len(args) == 6:
			r.run(args, nil)
		}
	}
	since := r.since
	r.since, r.piece = nil, nil
	for _, s := range since {
		if s.args != nil {
			if e := r.get(s.args[1]); !e.isForeign() || s.args[0] == "unlink" || s.args[0] == "del" {
				r.run(s.args, nil)
			}
			continue
		}
		now := r.get(s.key)
		switch {
		case s.entry.isForeign():
			foreign := *s.entry
			foreign.displaced = now
			r.put(s.key, &foreign)
		case now.isForeign() && s.entry != nil:
			r.put(s.key, now.displaced)
		default:
			r.put(s.key, s.entry)
		}
	}
	r.loading = false
	r.committed(mark)
	r.cutAll(nil)
}

// kept is what a fold keeps of a log: the newest cells that fit. The others move.
func (r *simRedis) kept(key string, e *simEntry) (text string, moved []simField) {
	sums := map[int]int64{}
	for _, f := range simLogFields(key, e) {
		at, _ := strconv.Atoi(f.name)
		sums[at] += f.number()
	}
	cells := sortedKeys(sums)
	from, bytes := len(cells), 0
	encode := func(at int) []byte {
		if n := sums[at]; n > 1 {
			return binary.AppendUvarint(binary.AppendUvarint(nil, uint64(at)<<1|1), uint64(n))
		}
		return binary.AppendUvarint(nil, uint64(at)<<1)
	}
	for ; from > 0; from-- {
		if bytes += len(encode(cells[from-1])); bytes > r.keepBytes {
			break
		}
	}
	if first := simLogFields(key, e); from > 0 && from < len(cells) && strconv.Itoa(cells[from]) == first[0].name {
		from++ // the beginning of a log is not left as it was
	}
	for _, at := range cells[from:] {
		text += string(encode(at))
	}
	for _, at := range cells[:from] {
		moved = append(moved, simField{strconv.Itoa(at), strconv.FormatInt(sums[at], 10)})
	}
	return text, moved
}

// moveTorn takes what torn transactions have added to a log along, when its cells move.
func (r *simRedis) moveTorn(key string, e, changed *simEntry) {
	if r.loading || e == nil || len(e.torn) == 0 {
		return // its text is from before the piece was run
	}
	_, moved := r.kept(key, e)
	gone := map[string]bool{}
	for _, f := range moved {
		gone[f.name] = true
	}
	changed.torn = map[string]simTorn{}
	for name, torn := range e.torn {
		if !gone[name] {
			changed.torn[name] = torn
			continue
		}
		for _, at := range r.placesOf(key, name) {
			if hash := r.get(at.name); hash != nil && !hash.isForeign() {
				to := hash.copy()
				if to.torn = maps.Clone(to.torn); to.torn == nil {
					to.torn = map[string]simTorn{}
				}
				to.torn[at.value] = simTorn{to.torn[at.value].by + torn.by, torn.at}
				r.put(at.name, to)
			}
		}
	}
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
