package erase

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math"
	mathrand "math/rand/v2"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/platform/redisconn"
	"tallyroll/internal/platform/wait"
	"tallyroll/internal/window"
	"tallyroll/internal/window/internal/cluster"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"
)

// Eraser is a Reader that also removes counters.
type Eraser struct{ *read.Reader }

// Erased is what one call has removed.
type Erased struct {
	Counters int // that had hits
	// Next is the After of the next call, if there may be more names.
	Next string
}

const (
	// maxCounters is the most counters per transaction, maxHashes the most hashes and unique cells of these.
	// A single counter is never divided. Removing 1600 hashes takes Redis about a millisecond.
	maxCounters, maxHashes = 100, 5000
	// eraseReads is how many summaries one MGET reads: at most 30 KB each, with one shard.
	eraseReads = 100
	// eraseNames is how many names are listed at a time, and removed before more are listed.
	eraseNames = 10_000
	// eraseTries bounds the tries of a transaction that commits keep interrupting.
	eraseTries    = 100
	maxErasePause = 20 * time.Millisecond
)

// ErrBusy means that commits interrupted every try to remove some counters. None of these was removed.
var ErrBusy = errors.New("workers commit to a shard too often for an erasure to come in between")

// ErrRetiering means that a change of the namespace's tiers has not ended.
var ErrRetiering = errors.New("the namespace's tiers were changed: run ingest --retier confirm before you erase " +
	"counters")

// Erase removes counters. After an error, a few more than Counters may be removed. Its errors are those of
// Answer, and ErrBusy.
func (r Eraser) Erase(ctx context.Context, counters []string) (out Erased, err error) {
	_, err = read.WithSurvey(ctx, r.Reader, func(base read.Survey) (int, error) {
		n, err := r.eraseCounters(ctx, base, counters)
		out.Counters += n
		return n, err
	})
	return out, err
}

// EraseListed removes some listed counters with a prefix, the first after a name. Its errors are Erase's.
func (r Eraser) EraseListed(ctx context.Context, prefix, after string) (out Erased, err error) {
	_, err = read.WithSurvey(ctx, r.Reader, func(base read.Survey) (int, error) {
		layout := base.Layout()
		sets := make(read.NameSets, layout.Shards) // from which the names are removed
		for shard := range sets {
			e := newShardEraser(r.Store, layout, shard, nil, nil)
			e.plan(base.Now(), base.LatestHit())
			sets[shard] = e.sets
		}
		names, more, err := sets.List(ctx, r.Store.Client, prefix, after, eraseNames)
		if err != nil {
			return 0, err
		}
		n, err := r.eraseCounters(ctx, base, names)
		out.Counters += n
		if err == nil && more {
			out.Next = names[len(names)-1]
		}
		return n, err
	})
	return out, err
}

func (r Eraser) eraseCounters(ctx context.Context, base read.Survey, counters []string) (erased int, err error) {
	layout := base.Layout()
	shards := make([][]string, layout.Shards)
	for _, counter := range counters {
		shard := layout.ShardOf(window.HashCounter([]byte(counter)))
		shards[shard] = append(shards[shard], counter)
	}
	for shard, counters := range shards {
		if len(counters) == 0 {
			continue
		}
		e := newShardEraser(r.Store, layout, shard, base.Streams(), counters)
		e.plan(base.Now(), base.LatestHit())
		for len(counters) > 0 {
			chunk := counters[:min(len(counters), e.counters)]
			n, err := e.eraseChunk(ctx, chunk)
			erased += n
			if err != nil {
				r.Store.Client.RefreshMasters(ctx)
				return erased, fmt.Errorf("erase %d counters of shard %d: %w", len(chunk), shard, err)
			}
			counters = counters[len(chunk):]
		}
	}
	return erased, nil
}

type shardEraser struct {
	store   *schema.Store
	layout  window.Layout
	shard   int
	streams []string // those that are listed
	watch   []string // Keys.Erasure, and the streams' cursors
	wanted  map[string]bool

	// The plan: which keys may exist.
	counters int                 // that a transaction removes
	now      int64               // Unix milliseconds
	until    int64               // keys are planned for hits up to this moment
	sets     []string            // of names
	tops     [][]topOf           // by stream
	epochs   []window.EpochRange // by tier, see window.Layout.StoredTiers
	uniques  []window.EpochRange // by unique tier

	// The summaries that list a wanted counter. They are current while cursors and erasures are unchanged.
	erased string
	last   string      // the whole text of Keys.Erasure, read with the cursors
	known  []knownTops // by stream
}

// topOf is the key of a summary, and when it expires (Unix seconds).
type topOf struct {
	key      string
	deadline int64
}

// knownTops are summaries of a stream, by key, as they were when its cursor was at a position.
type knownTops struct {
	at    schema.CursorRecord
	texts map[string]string // nil if they have not been read
}

func newShardEraser(store *schema.Store, layout window.Layout, shard int, streams, counters []string) *shardEraser {
	e := &shardEraser{
		store: store, layout: layout, shard: shard, streams: streams, watch: []string{store.Keys.Erasure(shard)},
		wanted: make(map[string]bool, len(counters)), known: make([]knownTops, len(streams)),
	}
	for _, stream := range streams {
		e.watch = append(e.watch, store.Keys.Cursor(shard, stream))
	}
	for _, counter := range counters {
		e.wanted[counter] = true
	}
	return e
}

func (e *shardEraser) plan(now, latest int64) {
	e.now, latest = now, max(now, latest)
	e.epochs, e.uniques, e.sets = e.epochs[:0], e.uniques[:0], e.sets[:0]
	e.tops = make([][]topOf, len(e.streams))
	keys, span := int64(0), int64(math.MaxInt64)
	add := func(to *[]window.EpochRange, t window.Tier) {
		first, last := window.LiveEpochs(t, now, latest)
		*to = append(*to, window.EpochRange{First: first, Last: last})
		keys, span = keys+last-first+1, min(span, t.EpochMillis())
	}
	for _, t := range e.layout.StoredTiers() {
		add(&e.epochs, t)
	}
	for _, t := range e.layout.UniqueTiers {
		add(&e.uniques, t)
	}
	e.counters = int(min(maxCounters, max(1, maxHashes/keys)))
	e.until = latest + span
	t, live := e.layout.NamesTier(), e.epochs[len(e.epochs)-1]
	for set := t.NamesOf(live.First); set <= t.NamesOf(live.Last); set++ {
		e.sets = append(e.sets, e.store.Keys.Names(e.shard, t, set))
	}
	if len(e.uniques) > 0 {
		for set := e.layout.UniqueNamesOf(e.until); e.layout.UniqueNamesDeadline(set)*1000 > now; set-- {
			e.sets = append(e.sets, e.store.Keys.UniqueNames(e.shard, set))
		}
	}
	for i, t := range e.layout.Tiers {
		if !e.layout.HasSummaries(i) {
			continue
		}
		oldest := now - t.Window.Milliseconds() - t.Grace() - 1000
		for number := t.SegmentOf(t.CellAt(oldest)) - 1; number <= t.SegmentOf(t.CellAt(e.until)); number++ {
			for s, stream := range e.streams {
				e.tops[s] = append(e.tops[s], topOf{e.store.Keys.Summary(e.shard, t, number, stream),
					t.SegmentDeadline(number)})
			}
		}
	}
}

func (e *shardEraser) hashes(counter string) (out []string) {
	for i, t := range e.layout.StoredTiers() {
		for epoch := e.epochs[i].First; epoch <= e.epochs[i].Last; epoch++ {
			out = append(out, e.store.Keys.Hash(window.CellHash{Shard: e.shard, Counter: counter, Tier: t,
				Epoch: epoch}))
		}
	}
	for i, t := range e.layout.UniqueTiers {
		for cell := e.uniques[i].First; cell <= e.uniques[i].Last; cell++ {
			out = append(out, e.store.Keys.Unique(e.shard, t, cell, counter))
		}
	}
	return out
}

// eraseChunk removes some counters in one transaction, and returns how many had hits.
func (e *shardEraser) eraseChunk(ctx context.Context, counters []string) (erased int, err error) {
	for try := range eraseTries {
		erased, err = e.attempt(ctx, counters)
		if !errors.Is(err, redis.TxFailedErr) {
			return erased, err
		}
		if err := wait.Sleep(ctx, mathrand.N(min(time.Duration(try+1)*time.Millisecond, maxErasePause))); err != nil {
			return 0, err
		}
	}
	return 0, ErrBusy
}

// attempt tries once. The error is redis.TxFailedErr if a commit or another erasure interrupted it.
func (e *shardEraser) attempt(ctx context.Context, counters []string) (erased int, err error) {
	hashes := make([][]string, len(counters))
	for i, counter := range counters {
		hashes[i] = e.hashes(counter)
	}
	err = e.store.Client.Watch(ctx, e.watch, func(tx *cluster.WatchedTx) error {
		there, at, now, err := e.readState(ctx, tx, counters, hashes)
		if err == nil {
			err = e.checkNamespace(ctx)
		}
		if err != nil {
			return err
		}
		changed, err := e.removeFromTops(ctx, tx, counters, at)
		if err != nil || !there && len(changed) == 0 {
			return err
		}
		erased, err = e.exec(ctx, tx, counters, hashes, changed, at, now)
		return err
	})
	return erased, err
}

// checkNamespace returns ErrStale if a stream is listed that the shardEraser does not have, or if the tiers
// have changed, and ErrRetiering while a change of tiers has not ended, because the cells of the other tiers
// would stay. A change that begins later alters the cursors, which are watched, before it reads any cell.
func (e *shardEraser) checkNamespace(ctx context.Context) error {
	record, err := e.store.ReadLayout(ctx)
	switch {
	case err != nil:
		return err
	case record.Change != nil:
		return ErrRetiering
	case record.Tiers[0].Generation != e.layout.Tiers[0].Generation:
		return read.ErrStale
	}
	listed, err := e.store.Streams(ctx)
	if err != nil {
		return err
	}
	for stream := range listed {
		if !slices.Contains(e.streams, stream) {
			return read.ErrStale
		}
	}
	return nil
}

type placed struct {
	schema.CursorRecord
	exists bool
	fields []any // as Redis has them
}

// readState reads the last erasure and the cursors, and whether anything but summaries exists of the
// counters. now is Redis's clock in Unix seconds.
func (e *shardEraser) readState(ctx context.Context, tx *cluster.WatchedTx, counters []string,
	hashes [][]string) (there bool, at []placed, now int64, err error) {
	var clock *redis.TimeCmd
	var last *redis.StringCmd
	cursors := make([]*redis.SliceCmd, len(e.streams))
	found := make([]*redis.IntCmd, len(counters))
	var listed []*redis.FloatCmd
	err = tx.Read(ctx, func(p redis.Pipeliner) {
		clock = p.Time(ctx)
		last = p.Get(ctx, e.watch[0])
		for s := range e.streams {
			cursors[s] = p.HMGet(ctx, e.watch[1+s], schema.CursorFields...)
		}
		for i, counter := range counters {
			found[i] = p.Exists(ctx, hashes[i]...)
			for _, set := range e.sets {
				listed = append(listed, p.ZScore(ctx, set, counter))
			}
		}
	})
	if err == nil {
		err = clock.Err()
	}
	if err != nil {
		return false, nil, 0, err
	}
	erased, err := schema.ParseErasure(last)
	if err != nil {
		return false, nil, 0, err
	}
	if erased != e.erased {
		e.erased, e.known = erased, make([]knownTops, len(e.streams)) // another shardEraser may have changed summaries
	}
	e.last = last.Val()
	// Redis's clock, too: the cursor of a recreated stream does not show how late earlier hits were.
	latest := clock.Val().UnixMilli()
	at = make([]placed, len(e.streams))
	for s, cursor := range cursors {
		if at[s].CursorRecord, at[s].exists, err = schema.ParseCursor(e.watch[1+s], cursor); err != nil {
			return false, nil, 0, err
		}
		at[s].fields = cursor.Val()
		latest = max(latest, at[s].LatestHit())
	}
	if latest > e.until { // there may be keys that the plan does not know
		e.plan(max(e.now, clock.Val().UnixMilli()), latest)
		e.known = make([]knownTops, len(e.streams))
		return false, nil, 0, redis.TxFailedErr // try again
	}
	for _, f := range found {
		if f.Err() != nil {
			return false, nil, 0, f.Err()
		}
		there = there || f.Val() > 0
	}
	for _, l := range listed {
		switch {
		case l.Err() == nil:
			there = true
		case !errors.Is(l.Err(), redis.Nil):
			return false, nil, 0, cluster.WrapForeign(l.Args()[1].(string), l.Err())
		}
	}
	return there, at, clock.Val().Unix(), nil
}

type changedTop struct {
	topOf
	stream int
	text   string
	more   bool // it still lists counters that are wanted
}

// removeFromTops returns the summaries that list any of the counters, without these. If a stream's cursor has
// moved, it reads the stream's summaries again.
func (e *shardEraser) removeFromTops(ctx context.Context, tx *cluster.WatchedTx, counters []string,
	at []placed) (out []changedTop, err error) {
	gone := make(map[string]bool, len(counters))
	for _, counter := range counters {
		gone[counter] = true
	}
	for s := range e.streams {
		place := at[s].CursorRecord
		place.AsOf, place.IncompleteBefore, place.Opened, place.Closed = 0, 0, 0,
			0 // no summary changes with them alone
		if e.known[s].texts == nil || e.known[s].at != place {
			texts, err := e.readTops(ctx, tx, e.tops[s])
			if err != nil {
				return nil, err
			}
			e.known[s] = knownTops{place, texts}
		}
		for _, top := range e.tops[s] {
			text, known := e.known[s].texts[top.key]
			if !known {
				continue
			}
			found, err := window.ParseSummary(text)
			if err != nil {
				return nil, &window.ForeignError{Key: top.key, Err: err} // it was read before
			}
			if found.Remove(gone) {
				out = append(out, changedTop{top, s, found.Encode(), found.ListsAny(e.wanted)})
			}
		}
	}
	return out, nil
}

// readTops reads the summaries with wanted counters, by key. It skips those that another program has written.
func (e *shardEraser) readTops(ctx context.Context, tx *cluster.WatchedTx, tops []topOf) (map[string]string, error) {
	out := make(map[string]string)
	for some := range slices.Chunk(tops, eraseReads) {
		keys := make([]string, len(some))
		for i, top := range some {
			keys[i] = top.key
		}
		texts, err := tx.MGet(ctx, keys...).Result() // nil for a key that does not exist, or that is no string
		if err != nil {
			return nil, err
		}
		for i, top := range some {
			text, ok := texts[i].(string)
			if !ok {
				continue
			}
			found, err := window.ParseSummary(text)
			if err == nil && found.ListsAny(e.wanted) {
				out[top.key] = text
			}
		}
	}
	return out, nil
}

// exec sends MULTI … EXEC. now is Redis's clock in Unix seconds.
func (e *shardEraser) exec(ctx context.Context, tx *cluster.WatchedTx, counters []string, hashes [][]string,
	changed []changedTop, at []placed, now int64) (erased int, err error) {
	members := make([]any, len(counters))
	for i := range counters {
		members[i] = counters[i]
	}
	upTo := (now + 1) * 1000
	for s := range at {
		upTo = max(upTo, at[s].LatestHit()+1)
	}
	text := schema.NewErasure(e.erased, upTo)
	var first *redis.StatusCmd
	removed := make([]*redis.IntCmd, len(counters))
	results, err := tx.Exec(ctx, func(p redis.Pipeliner) {
		// First: if a torn file runs a part of this again, no writer may go on trusting what is removed then.
		first = p.Set(ctx, e.watch[0], text, 0)
		for s := range at {
			if at[s].exists {
				p.HIncrBy(ctx, e.watch[1+s], "opened", 1) // and "closed" last: see CursorRecord.IsTorn
			}
		}
		for i := range counters {
			removed[i] = p.Unlink(ctx, hashes[i]...)
		}
		for _, set := range e.sets {
			p.ZRem(ctx, set, members...)
		}
		for _, top := range changed {
			if top.deadline > now {
				p.SetArgs(ctx, top.key, top.text, redis.SetArgs{ExpireAt: time.Unix(top.deadline, 0)})
			}
		}
		for s := range at {
			if at[s].exists {
				p.HIncrBy(ctx, e.watch[1+s], "closed", 1)
			}
		}
	})
	if errors.Is(err, window.ErrBare) {
		for s := range at {
			if at[s].exists {
				err = errors.Join(err, e.store.MarkTorn(ctx, e.watch[1+s]))
			}
		}
	}
	full := redisconn.IsFull(err) && !errors.Is(err, window.ErrBare)
	if full {
		erased, err = e.runScript(ctx, tx, members, hashes, changed, at, text, now)
	}
	if err != nil && (full || first.Val() == "") {
		return 0, err // it has not run, or that is unknown
	}
	for _, top := range changed {
		if texts := e.known[top.stream].texts; top.more {
			texts[top.key] = top.text
		} else {
			delete(texts, top.key)
		}
	}
	e.erased = text
	if full {
		return erased, nil
	}
	for _, r := range removed {
		if r.Val() > 0 {
			erased++
		}
	}
	for _, command := range results {
		if failed := cluster.FindFailed(command); failed != nil {
			return erased, failed
		}
	}
	return erased, nil
}

//go:embed erase.lua
var source string

var script = redis.NewScript(source)

// runScript is exec on a Redis without memory, which an erasure has to free: it refuses every command inside
// MULTI, but nothing in a script that has written. The script compares what is watched.
func (e *shardEraser) runScript(ctx context.Context, tx *cluster.WatchedTx, members []any, hashes [][]string,
	changed []changedTop, at []placed, text string, now int64) (erased int, err error) {
	changed = slices.DeleteFunc(slices.Clone(changed), func(top changedTop) bool { return top.deadline <= now })
	keys := slices.Concat(e.watch, slices.Concat(hashes...), e.sets)
	args := []any{len(at), len(members), len(hashes[0]), len(e.sets), len(changed), e.last, text,
		len(schema.CursorFields)}
	args = append(args, schema.CursorArgs...)
	for s := range at {
		for _, field := range at[s].fields {
			value, _ := field.(string) // none is empty in the script, too
			args = append(args, value)
		}
	}
	args = append(args, members...)
	for _, top := range changed {
		keys, args = append(keys, top.key), append(args, top.text, top.deadline)
	}
	erased, err = script.Run(ctx, tx, keys, args...).Int()
	if err == nil && erased < 0 {
		err = redis.TxFailedErr
	}
	return erased, err
}
