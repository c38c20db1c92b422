package commit

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/window"
	"tallyroll/internal/window/internal/cluster"
	"tallyroll/internal/window/schema"
)

// logChange is what a transaction does with a log (see window.Layout.SparseTier): it appends to it, or folds
// it.
type logChange struct {
	key      string
	id       uint64  // see logID
	deadline int64   // Unix seconds
	size     logSize // before; 0: the log may be missing
	from, to int     // of changes.logBytes
	text     string  // of this load's hits

	begins  string         // the log after a fold; empty if the transaction appends text
	created *redis.BoolCmd // nil if no SET comes first
	length  *redis.IntCmd  // of APPEND
}

// lasts reports whether a log lives for so long that APPEND alone will do: for half of its window, and a
// minute. If EXEC runs after the log has expired, or Redis's clock was ahead, APPEND begins another key,
// without a header and an expiry.
func (l *logChange) lasts(t window.Tier, now int64) bool {
	return l.deadline-now >= max(60, int64(t.Window/2/time.Second))
}

// addLogs lists what goes into the logs of a counter, like compute.
func (c *changes) addLogs(batch *window.ShardBatch, counter *window.CounterHits, shard int, keys schema.Keys,
	known *sizeMemory, now int64) {
	layout, t := batch.Layout, batch.NamesTier
	c.cells = batch.LogCells(counter, c.cells)
	for _, cell := range c.cells {
		deadline := t.Deadline(cell.Epoch, counter.CounterHash)
		if deadline <= now {
			continue
		}
		for i, level := range layout.Tiers {
			if layout.HasSummaries(i) {
				number := level.SegmentOf(level.CellAt(t.CellStart(cell.Cell)))
				c.segment(window.Segment{Tier: i, Number: number}).Add(counter.Name, cell.N)
			}
		}
		if !cell.First {
			c.logBytes = window.AppendLogCell(c.logBytes, cell.Field, cell.N)
		} else {
			l := logChange{id: logID(counter.CounterHash, cell.Epoch), deadline: deadline, from: len(c.logBytes)}
			l.key = keys.Hash(window.CellHash{Shard: shard, Counter: counter.Name, Tier: t, Epoch: cell.Epoch})
			l.size, _ = known.size(l.id)
			c.list(t, counter, cell.Epoch, known)
			c.logs = append(c.logs, l)
			c.logBytes = window.AppendFirstLogCell(c.logBytes, cell.Field, cell.N)
		}
		c.logs[len(c.logs)-1].to = len(c.logBytes)
	}
}

// finishLogs builds the texts; call it last.
func (c *changes) finishLogs() {
	text := string(c.logBytes)
	for i := range c.logs {
		l := &c.logs[i]
		l.text = text[l.from:l.to]
	}
}

// logs are what a writer knows of its logs, and those that the current attempt folds.
//
// A fold moves the oldest cells of a log into the tiers' hashes. It sets their fields to absolute values, in
// the transaction that begins the log again: if Redis runs it twice (a torn append-only file), the hits have
// moved once. So nothing may change the log or these hashes between the reads and EXEC, and all are watched.
type logs struct {
	sizes   sizeMemory
	folds   []fold
	suspect []*logChange // of the last transaction: keys that may hold something else
}

type fold struct {
	counter *window.CounterHits
	epoch   int64
	key     string
	read    *redis.StringCmd
	foreign error      // the key has no log
	log     *logChange // nil if it is left as it is
	hashes  []foldedHash
}

// foldedHash is what a fold sets in a hash.
type foldedHash struct {
	key      string
	deadline int64 // Unix seconds
	fields   []int64
	moved    []int64 // by field: what the log has
	own      []int64 // by field: what the same transaction adds before
	values   []int64 // by field
	read     *redis.SliceCmd
}

// watch returns the keys of the logs that a batch folds.
func (l *logs) watch(batch *window.ShardBatch, shard int, keys schema.Keys) (watched []string) {
	l.folds = l.folds[:0]
	for i := range batch.Counters {
		c := &batch.Counters[i]
		if epoch, ok := batch.FoldedEpoch(c); ok {
			key := keys.Hash(window.CellHash{Shard: shard, Counter: c.Name, Tier: batch.NamesTier, Epoch: epoch})
			l.folds, watched = append(l.folds, fold{counter: c, epoch: epoch, key: key}), append(watched, key)
		}
	}
	return watched
}

func (l *logs) queueReads(ctx context.Context, p redis.Pipeliner) {
	for i := range l.folds {
		l.folds[i].read = p.Get(ctx, l.folds[i].key)
	}
}

// fold divides the logs that were read, watches and reads the hashes of the cells that move, and changes what
// the transaction does with the logs. It leaves a log as it is if it cannot be folded now.
func (l *logs) fold(ctx context.Context, tx *cluster.WatchedTx, batch *window.ShardBatch, shard int,
	store *schema.Store, changed []logChange, now int64) error {
	var hashes []*foldedHash
	for i := range l.folds {
		f := &l.folds[i]
		text, err := f.read.Result()
		if err != nil && !errors.Is(err, redis.Nil) && !cluster.IsAboutValue(err) {
			return err
		}
		at := slices.IndexFunc(changed, func(c logChange) bool { return c.key == f.key })
		if err != nil || at < 0 || !changed[at].lasts(batch.NamesTier, now) { // it is gone, or will be
			continue
		}
		cells, err := batch.NamesTier.ParseLog(text)
		if err != nil {
			f.foreign = &window.ForeignError{Key: f.key, Err: err}
			continue
		}
		changed = changed[at:] // the changes are in the order of counters, as the folds
		moved, kept := batch.FoldLog(f.counter, f.epoch, cells, store.MaxLogBytes/4)
		begins := window.LogHeader + string(kept) + changed[0].text
		f.addHashes(batch, &moved, shard, store.Keys, now)
		if len(f.hashes) > 0 && window.LogsBeginAlike(text, begins) {
			continue // nothing stays, and this load begins with the same second; another one will not
		}
		f.log, changed[0].begins = &changed[0], begins
		for k := range f.hashes {
			hashes = append(hashes, &f.hashes[k])
		}
	}
	if err := readHashes(ctx, tx, hashes); err != nil {
		return err
	}
	for i := range l.folds {
		f := &l.folds[i]
		if f.log == nil {
			continue
		}
		if sound, err := f.add(); err != nil {
			return err
		} else if !sound {
			f.log.begins, f.log = "", nil
		}
	}
	return nil
}

// addHashes lists the hashes to which cells of the log move. In tiers that are past the cells, nothing moves.
func (f *fold) addHashes(batch *window.ShardBatch, moved *window.CounterHits, shard int, keys schema.Keys, now int64) {
	own := batch.Cells(f.counter, nil) // late hits
	for _, cell := range batch.Cells(moved, nil) {
		t := batch.Layout.Tiers[cell.Tier]
		deadline := t.Deadline(cell.Epoch, f.counter.CounterHash)
		if deadline <= now {
			continue
		}
		if cell.First {
			key := keys.Hash(window.CellHash{Shard: shard, Counter: f.counter.Name, Tier: t, Epoch: cell.Epoch})
			f.hashes = append(f.hashes, foldedHash{key: key, deadline: deadline})
		}
		h, n := &f.hashes[len(f.hashes)-1], int64(0)
		for _, o := range own {
			if o.Tier == cell.Tier && o.Cell == cell.Cell {
				n = o.N
			}
		}
		h.fields, h.moved, h.own = append(h.fields, cell.Field), append(h.moved, cell.N), append(h.own, n)
	}
}

func readHashes(ctx context.Context, tx *cluster.WatchedTx, hashes []*foldedHash) error {
	if len(hashes) == 0 {
		return nil
	}
	keys := make([]string, len(hashes))
	for i, h := range hashes {
		keys[i] = h.key
	}
	return tx.ReadMore(ctx, keys, func(p redis.Pipeliner) {
		for _, h := range hashes {
			args := append(make([]any, 0, 2+len(h.fields)), "hmget", h.key)
			for _, field := range h.fields {
				args = append(args, field)
			}
			h.read = redis.NewSliceCmd(ctx, args...)
			_ = p.Process(ctx, h.read) // queues it
		}
	})
}

// add computes the values of all fields. It reports false if a key holds something else than counts.
func (f *fold) add() (sound bool, err error) {
	for i := range f.hashes {
		h := &f.hashes[i]
		found, err := h.read.Result()
		if cluster.IsAboutValue(err) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		h.values = make([]int64, len(h.fields))
		for k := range h.fields {
			had := int64(0)
			if text, ok := found[k].(string); ok {
				if had, err = strconv.ParseInt(text, 10, 64); err != nil {
					return false, nil
				}
			}
			sum := window.AddCounts(window.AddCounts(had, min(h.own[k], window.Saturated)), h.moved[k])
			h.values[k] = min(sum, max(had, window.Saturated))
		}
	}
	return true, nil
}

func (c *commands) queueLogs(ctx context.Context, p redis.Pipeliner, list []logChange, t window.Tier, now int64) {
	for i := range list {
		l := &list[i]
		if l.begins != "" {
			continue // queueFolds
		}
		lasts := l.lasts(t, now)
		if l.size.bytes() == 0 || !lasts {
			l.created = redis.NewBoolCmd(ctx,
				c.arguments("set", &l.key, window.LogHeader, "nx", "exat", &l.deadline)...)
			_ = p.Process(ctx, l.created) // queues it
		}
		l.length = redis.NewIntCmd(ctx, c.arguments("append", &l.key, &l.text)...)
		_ = p.Process(ctx, l.length)
		if !lasts {
			_ = p.Process(ctx, redis.NewBoolCmd(ctx, c.arguments("expireat", &l.key, &l.deadline)...))
		}
	}
}

// queueFolds queues the folds, which come after all other counts, log by log, and SET after its HSETs. So if
// a file is torn, at most one log has moved hits that it still has. The other order would lose hits.
func (c *commands) queueFolds(ctx context.Context, p redis.Pipeliner, folds []fold) {
	for i := range folds {
		f := &folds[i]
		if f.log == nil {
			continue
		}
		for k := range f.hashes {
			h := &f.hashes[k]
			first := len(c.args)
			c.args = append(c.args, "hset", &h.key)
			for at := range h.fields {
				c.args = append(c.args, &h.fields[at], &h.values[at])
			}
			_ = p.Process(ctx, redis.NewIntCmd(ctx, c.args[first:len(c.args):len(c.args)]...)) // queues it
			_ = p.Process(ctx, redis.NewBoolCmd(ctx, c.arguments("expireat", &h.key, &h.deadline)...))
		}
		_ = p.Process(ctx, redis.NewStatusCmd(ctx,
			c.arguments("set", &f.key, &f.log.begins, "exat", &f.log.deadline)...))
	}
}

// learn remembers what EXEC has shown of the logs. A key is suspect if its last size and what was appended do
// not explain its length. complete means that no command failed.
func (l *logs) learn(c *changes, complete bool, out *Commit) {
	l.suspect = l.suspect[:0]
	for _, id := range c.listed {
		if complete {
			l.sizes.add(id, 0)
		}
	}
	for i := range c.logs {
		change, size := &c.logs[i], int64(0)
		switch {
		case change.begins != "":
			size = int64(len(change.begins))
		case change.length.Err() != nil: // it holds something else than a string
		case change.created != nil && change.created.Val(), change.isExplained():
			size = change.length.Val()
		default:
			l.suspect = append(l.suspect, change)
		}
		l.remember(change, size, change.size.isShared())
	}
	for i := range l.folds {
		if f := &l.folds[i]; f.foreign != nil {
			out.failed(f.foreign)
			l.sizes.add(logID(f.counter.CounterHash, f.epoch), 0)
		}
	}
}

// isExplained reports whether the length after APPEND shows that the key was the previous log, or one to
// which another stream has appended.
func (l *logChange) isExplained() bool {
	expected := int64(l.size.bytes() + len(l.text))
	return l.size.bytes() > 0 && (l.length.Val() == expected || l.length.Val() > expected && l.size.isShared())
}

// remember remembers the size of the log of a listed counter; 0 if the key may be none.
func (l *logs) remember(c *logChange, size int64, shared bool) {
	if _, listed := l.sizes.size(c.id); listed {
		l.sizes.add(c.id, logSizeOf(size, shared))
	}
}

// check asks whether suspect keys hold logs, again if the last question was not answered. A log that another
// program has deleted, or that has expired because the clock of Redis was ahead, has no header now, and holds
// only what was appended. It is deleted, so that later hits count. A key stays suspect until it is seen to
// hold a log.
//
// If a key is gone by now, its hits are lost, unless it has expired or was erased since: an operator may have
// deleted what another program had written there. A loss is missed only if the key is a log again by now, or
// anything was erased on this shard since.
func (l *logs) check(ctx context.Context, tx *cluster.WatchedTx, erasure string, out *Commit) error {
	if len(l.suspect) == 0 {
		return nil
	}
	replies := make([]*redis.StringCmd, len(l.suspect))
	var clock *redis.TimeCmd
	var last *redis.StringCmd
	_, _ = tx.Pipelined(ctx, func(p redis.Pipeliner) error { // the errors are those of the single commands
		for i, c := range l.suspect {
			replies[i] = p.GetRange(ctx, c.key, 0, int64(len(window.LogHeader)-1))
		}
		clock, last = p.Time(ctx), p.Get(ctx, erasure) // they explain what is gone
		return nil
	})
	erased, err := schema.ParseErasure(last)
	if err = cmp.Or(err, clock.Err()); err != nil {
		return err
	}
	for i, c := range l.suspect {
		switch text, err := replies[i].Result(); {
		case err != nil && !cluster.IsAboutValue(err):
			return err
		case err == nil && text == "" && (erased != out.under || c.deadline <= clock.Val().Unix()):
			continue
		case int64(len(c.text)) == c.length.Val(): // whatever it begins with, it had no header
			if err := tx.Del(ctx, c.key).Err(); err != nil {
				return err
			}
		case text == window.LogHeader:
			l.remember(c, c.length.Val(), c.size.bytes() > 0) // its writer is another stream's
			continue
		}
		out.failed(&window.ForeignError{Key: c.key, Err: errors.New("not a sparse log")})
	}
	l.suspect = l.suspect[:0]
	return nil
}
