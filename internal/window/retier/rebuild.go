package retier

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/platform/wait"
	"tallyroll/internal/window"
	"tallyroll/internal/window/commit"
	"tallyroll/internal/window/internal/cluster"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"
)

type rebuilding struct {
	store    *schema.Store
	from, to window.Layout
	sources  []int  // for each tier of to, the tier of from that its cells come from; -1 for none
	stream   string // the summaries are its
	now, end int64  // Unix milliseconds: by Redis's clock; all hits lie before
	tell     Progress
	done     int
}

// sourceCells are the cells of a counter by tier of the layout.
type sourceCells [][]sourceCell

type sourceCell struct{ start, n int64 }

const (
	// rebuildCells is how many cells the hashes read at a time can hold. Full ones take Redis some 20 ms.
	rebuildCells = 100_000
	rebuildNames = 500
)

// rebuild builds other tiers' cells, names and summaries, while no worker counts. It increments nothing, so
// it can be repeated. It returns the tiers with the moments from which they are complete. A cell is the sum
// of whole cells of one tier: of those that fit, the one that holds the longest time, with every hit of it
// (Layout.Plan).
func rebuild(ctx context.Context, s *schema.Store, l window.Layout, target window.Tiers, tell Progress) (window.Tiers,
	error) {
	streams, err := s.Streams(ctx)
	if err != nil {
		return nil, err
	}
	now, err := s.Client.Now(ctx)
	if err != nil {
		return nil, err
	}
	latest, err := latestApplied(ctx, s, l, streams)
	if err != nil {
		return nil, err
	}
	b := &rebuilding{store: s, from: l, to: window.Layout{Tiers: target, Shards: l.Shards}, now: now,
		end: max(now, latest) + 1, tell: tell}
	b.sources = b.chooseSources()
	b.stream = chooseSummaryOwner(streams)
	sets := b.nameSets()
	for shard := range l.Shards {
		if err := b.shard(ctx, shard, sets[shard:shard+1]); err != nil {
			return nil, err
		}
		if err := s.Client.Set(ctx, s.Keys.Built(shard, target[0].Generation), "1", 0).Err(); err != nil {
			return nil, err
		}
	}
	if err := checkBuilt(ctx, s, l.Shards, target[0].Generation); err != nil {
		return nil, err
	}
	// Cells may have expired in between. What is held now was held while it was read.
	if now, err = s.Client.Now(ctx); err != nil {
		return nil, err
	}
	out := slices.Clone(target)
	for i := range out {
		out[i].Since = b.completeFrom(i, now)
	}
	return out, nil
}

// ReplicationTime is how long a cluster gets to copy what was written, before the layout record relies on it.
// Tests shorten it.
var ReplicationTime = 2 * time.Second

// checkBuilt makes sure that no server of a cluster has lost cells because a replica took over: one with a
// shard's last key has all that was written before. A single server would lose the layout record too.
func checkBuilt(ctx context.Context, s *schema.Store, shards, generation int) error {
	if !s.Client.IsCluster() {
		return nil
	}
	if err := wait.Sleep(ctx, ReplicationTime); err != nil {
		return err
	}
	for shard := range shards {
		there, err := s.Client.Exists(ctx, s.Keys.Built(shard, generation)).Result()
		if err != nil {
			return err
		}
		if there == 0 {
			return &Error{fmt.Sprintf("a server has lost what was written of shard %d: run this again", shard)}
		}
	}
	return nil
}

// chooseSummaryOwner returns the stream that inherits the summaries of all hits so far; readers add up all
// streams. It is a live one if possible. If it ends, it stays listed for as long as a window reaches back to
// its end.
func chooseSummaryOwner(streams map[string]schema.Listed) (out string) {
	for name, l := range streams {
		better := out == "" || (l.Ended == 0) != (streams[out].Ended == 0) && l.Ended == 0
		if better || (l.Ended == 0) == (streams[out].Ended == 0) && name < out {
			out = name
		}
	}
	return out
}

// latestApplied returns a moment (Unix milliseconds) up to which all counted hits were stored. It can be
// later than now, because hits are dated by NATS's clock, which may be ahead of Redis's.
func latestApplied(ctx context.Context, s *schema.Store, l window.Layout,
	streams map[string]schema.Listed) (latest int64, err error) {
	for stream := range streams {
		for shard := range l.Shards {
			key := s.Keys.Cursor(shard, stream)
			c, found, err := schema.ParseCursor(key, s.Client.HMGet(ctx, key, schema.CursorFields...))
			if err != nil {
				return 0, err
			}
			if found {
				latest = max(latest, c.AsOf, c.LatestHit())
			}
		}
	}
	return latest, nil
}

// chooseSources returns the sources. A cell cannot be divided, so a source's cells must divide those of the
// new tier. A tier with the same hashes comes first: its cells are copied, and so lack no hit.
func (b *rebuilding) chooseSources() []int {
	out := make([]int, len(b.to.Tiers))
	for i, t := range b.to.Tiers {
		out[i] = -1
		var reach int64
		for j, source := range b.from.Tiers {
			if t.Cell%source.Cell != 0 {
				continue
			}
			if from := max(source.HoldsFrom(b.now), source.Since); out[i] < 0 || from < reach {
				out[i], reach = j, from
			}
		}
		if j := slices.IndexFunc(b.from.Tiers, func(source window.Tier) bool {
			return window.HasSameCells(source, t)
		}); j >= 0 {
			out[i] = j
		}
	}
	return out
}

// completeFrom returns the moment from which a tier's new cells, built by now (Redis's clock), lack nothing.
func (b *rebuilding) completeFrom(tier int, now int64) int64 {
	t, from := b.to.Tiers[tier], b.end
	if j := b.sources[tier]; j >= 0 {
		source := b.from.Tiers[j]
		if window.HasSameCells(source, t) {
			return source.Since
		}
		from = max(source.HoldsFrom(now), source.Since)
	}
	return -window.FloorDiv(-from, t.CellMillis()) * t.CellMillis()
}

func (b *rebuilding) epochs(t window.Tier) (first, last int64) {
	return t.FirstEpoch(math.MaxUint64, b.now), t.EpochAt(b.end)
}

// nameSets returns the sets that list the counters of each shard.
func (b *rebuilding) nameSets() read.NameSets {
	listed := b.from.NamesTier()
	first, _ := b.epochs(listed)
	return read.NameSetsOf(b.store.Keys, b.from, window.Range{From: listed.EpochStart(first), To: b.end})
}

// shard builds a shard, whose counters are in sets, some counters at a time, because the cells of all may not
// fit into memory. Each page begins after a name, so counters that expire meanwhile shift nothing.
func (b *rebuilding) shard(ctx context.Context, shard int, sets read.NameSets) error {
	var room int64
	for j, t := range b.from.StoredTiers() {
		if b.reads(j) {
			first, last := b.epochs(t)
			room += (last - first + 1) * t.Capacity()
		}
	}
	most := int(max(1, min(rebuildNames, rebuildCells/max(1, room))))
	tops := make(map[window.Segment]*window.Summary)
	for after, more := "", true; more; {
		var names []string
		var err error
		names, more, err = sets.List(ctx, b.store.Client, "", after, most)
		if err != nil {
			return err
		}
		if len(names) == 0 {
			break
		}
		after = names[len(names)-1]
		if b.stream == "" {
			return &Error{"the namespace has counters and no list of streams: a running worker writes it again: " +
				"start one, stop it, and run this again"}
		}
		cells, err := b.read(ctx, shard, names)
		if err == nil {
			err = b.counters(ctx, shard, names, cells, tops)
		}
		if err != nil {
			return err
		}
		b.done += len(names)
		b.tell("counters", b.done)
	}
	if err := b.allHits(ctx, shard); err != nil {
		return err
	}
	return b.writeTops(ctx, shard, tops)
}

// allHits writes the new cells of all hits from the old ones, which have the hits of erased counters.
func (b *rebuilding) allHits(ctx context.Context, shard int) error {
	name := []string{window.AllHits}
	cells, err := b.read(ctx, shard, name)
	if err != nil {
		return err
	}
	return b.counters(ctx, shard, name, cells, nil)
}

// counters writes the new cells and names of some counters. No transaction is needed: nobody reads them until
// the layout record names their generation, and after an interruption they are set to the same values.
func (b *rebuilding) counters(ctx context.Context, shard int, names []string, cells []sourceCells,
	tops map[window.Segment]*window.Summary) error {
	namesTier := b.to.NamesTier()
	listed := make(map[int64][]string) // by set
	size := b.to.SummarySize()
	cmds, err := b.store.Client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, name := range names {
			hash := window.HashCounter([]byte(name))
			sets := make(map[int64]bool)
			for tier, t := range b.to.Tiers {
				hits := make(map[int64]int64) // by segment
				for epoch, fields := range b.sum(tier, cells[i]) {
					deadline := t.Deadline(epoch, hash)
					if deadline*1000 <= b.now {
						continue
					}
					values := make([]any, 0, 2*len(fields))
					for field, n := range fields {
						cell := t.CellIn(epoch, field)
						values = append(values, field, n)
						hits[t.SegmentOf(cell)] = window.AddCounts(hits[t.SegmentOf(cell)], n)
						sets[namesTier.NamesOf(namesTier.EpochAt(t.CellStart(cell)))] = true
					}
					key := b.store.Keys.Hash(window.CellHash{Shard: shard, Counter: name, Tier: t, Epoch: epoch})
					p.HSet(ctx, key, values...)
					p.ExpireAt(ctx, key, time.Unix(deadline, 0))
				}
				if name != window.AllHits && b.to.HasSummaries(tier) {
					for number, n := range hits {
						at := window.Segment{Tier: tier, Number: number}
						if tops[at] == nil {
							tops[at] = &window.Summary{}
						}
						tops[at].AddWhole(name, n, size)
					}
				}
			}
			if name == window.AllHits {
				continue
			}
			for set := range sets {
				listed[set] = append(listed[set], name)
			}
		}
		for set, names := range listed {
			commit.List(ctx, p, b.store.Keys.Names(shard, namesTier, set), names, namesTier.NamesDeadline(set))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("write the cells of %d counters: %w", len(names), cluster.WrapForeignReply(cmds, err))
	}
	return nil
}

// read asks for the hashes of all epochs, because nothing lists which of them a counter has. A value that
// another program has written ends the change: the hits that were in its place would be missing silently.
func (b *rebuilding) read(ctx context.Context, shard int, names []string) ([]sourceCells, error) {
	type read struct {
		counter, tier int
		epoch         int64
		hash          *redis.MapStringStringCmd
		log           *redis.StringCmd // in place of hash
	}
	var reads []read
	tiers := b.from.StoredTiers()
	cmds, err := b.store.Client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, name := range names {
			for j, t := range tiers {
				if !b.reads(j) {
					continue
				}
				for epoch, last := b.epochs(t); epoch <= last; epoch++ {
					key := b.store.Keys.Hash(window.CellHash{Shard: shard, Counter: name, Tier: t, Epoch: epoch})
					r := read{counter: i, tier: j, epoch: epoch}
					if t.Sparse {
						r.log = p.GetRange(ctx, key, 0, -1) // empty for none
					} else {
						r.hash = p.HGetAll(ctx, key)
					}
					reads = append(reads, r)
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read %d hashes: %w", len(cmds), cluster.WrapForeignReply(cmds, err))
	}
	out := make([]sourceCells, len(names))
	for i := range out {
		out[i] = make(sourceCells, len(tiers))
	}
	for _, r := range reads {
		t := tiers[r.tier]
		add := func(field, n int64) {
			cells := &out[r.counter][r.tier]
			*cells = append(*cells, sourceCell{t.CellStart(t.CellIn(r.epoch, field)), n})
		}
		if t.Sparse {
			cells, err := t.ParseLog(cmp.Or(r.log.Val(), window.LogHeader))
			if err != nil {
				return nil, &window.ForeignError{Key: r.log.Args()[1].(string), Err: err}
			}
			for _, c := range cells {
				add(c.Field, c.N)
			}
			continue
		}
		for field, value := range r.hash.Val() {
			at, err := strconv.ParseInt(field, 10, 64)
			var n int64
			if err == nil {
				n, err = strconv.ParseInt(value, 10, 64)
			}
			if err != nil || n < 0 || at < 0 || at >= t.CellsPerEpoch() {
				return nil, &window.ForeignError{Key: r.hash.Args()[1].(string),
					Err: fmt.Errorf("a field %q of %q", field, value)}
			}
			add(at, n)
		}
	}
	return out, nil
}

// reads reports whether cells come from a tier of from, or (the last of StoredTiers) from the logs.
func (b *rebuilding) reads(tier int) bool {
	return tier == len(b.from.Tiers) || slices.Contains(b.sources, tier)
}

// sum adds the cells of a counter up to those of a new tier, by epoch and field. Those in logs are as fine
// as any.
func (b *rebuilding) sum(tier int, cells sourceCells) map[int64]map[int64]int64 {
	if b.sources[tier] < 0 {
		return nil
	}
	t, out := b.to.Tiers[tier], make(map[int64]map[int64]int64)
	source := slices.Clip(cells[b.sources[tier]])
	if len(cells) > len(b.from.Tiers) {
		source = append(source, cells[len(b.from.Tiers)]...)
	}
	for _, c := range source {
		epoch, field := t.EpochAndField(t.CellAt(c.start))
		if out[epoch] == nil {
			out[epoch] = make(map[int64]int64)
		}
		out[epoch][field] = window.AddCounts(out[epoch][field], c.n)
	}
	return out
}

// writeTops comes after all counters of a shard: before, it is unknown which of them are the largest.
func (b *rebuilding) writeTops(ctx context.Context, shard int, tops map[window.Segment]*window.Summary) error {
	cmds, err := b.store.Client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for at, top := range tops {
			t := b.to.Tiers[at.Tier]
			if deadline := t.SegmentDeadline(at.Number); deadline*1000 > b.now {
				top.KeepLargest(b.to.SummarySize())
				p.SetArgs(ctx, b.store.Keys.Summary(shard, t, at.Number, b.stream), top.Encode(),
					redis.SetArgs{ExpireAt: time.Unix(deadline, 0)})
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("write %d summaries: %w", len(tops), cluster.WrapForeignReply(cmds, err))
	}
	return nil
}
