package audit

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"tallyroll/internal/consume"
	"tallyroll/internal/platform/progress"
	"tallyroll/internal/window"
	"tallyroll/internal/window/inspect"
	"tallyroll/internal/window/schema"
)

// auditor compares a namespace with its streams.
type auditor struct {
	store     *schema.Store
	js        jetstream.JetStream
	namespace string
	limits    consume.Limits
	memory    int // bytes of a pass
	log       zerolog.Logger
	bar       *progress.Bar
	pace      pace
	report    report

	layout  window.Layout
	keys    sweptKeys
	streams *streamSet
	passes  int
	// overflows are by shard, as they were listed before any cell was read.
	overflows [][]*overflow
	filled    func(bytes int) // optional hook, called with the bytes that a pass used
}

const (
	// sharePerPage bounds the counters of a shard in one read, as hashesAtOnce bounds their hashes.
	sharePerPage = 64
	// hashesAtOnce bounds one transaction, which blocks Redis: for 3 ms if all hashes are full.
	hashesAtOnce = 128
)

// audit judges the whole namespace. Its error is the reason why it could not.
func (a *auditor) audit(ctx context.Context) error {
	var err error
	if a.layout, err = a.store.Layout(ctx); err != nil {
		return err
	}
	if a.keys, err = sweepKeys(ctx, inspect.New(a.store, a.layout, nil), a.pace); err != nil {
		return err
	}
	if a.streams, err = findStreams(ctx, a.store, a.js, a.namespace, a.layout, a.keys.streams, a.pace); err != nil {
		return err
	}
	listed, err := a.store.ReadOverflows(ctx)
	if err != nil {
		return err
	}
	a.overflows = findOverflows(a.layout, listed)
	if err := a.streams.readCursors(ctx, nil); err != nil {
		return err
	}
	if err := a.streams.confirm(ctx); err != nil {
		return err
	}
	began, err := inspect.HasBegan(ctx, a.store)
	if err != nil {
		return err
	}
	for after, more := "", true; more; {
		if after, more, err = a.pass(ctx, after, began); err != nil {
			return err
		}
	}
	if overflows, err := a.store.ReadOverflows(ctx); err != nil || len(overflows) != len(listed) {
		return cmp.Or(err, fmt.Errorf("%w: names began to overflow meanwhile: run again", errUnjudged))
	}
	now, err := a.store.Layout(ctx)
	if err == nil && (now.Shards != a.layout.Shards || !slices.Equal(now.Tiers, a.layout.Tiers)) {
		err = fmt.Errorf("%w: the namespace was recreated meanwhile: run again", errUnjudged)
	}
	if err != nil {
		return err
	}
	return a.judgeKeys(ctx)
}

// pass judges as many counters after a name as fit into memory. It returns the last, and whether more follow.
func (a *auditor) pass(ctx context.Context, after string, began bool) (to string, more bool, err error) {
	a.passes++
	l := newLedger(a.layout, a.overflows, after, a.memory)
	for _, s := range a.streams.all {
		s.marks = make(map[uint64][]namedMessage)
	}
	err = a.streams.readCursors(ctx, func(shard int, places []inspect.Place, at time.Time) {
		l.addSnapshot(shard, places, (at.UnixMilli()+999)/1000, at.UnixMilli(), true)
	})
	if err != nil {
		return "", false, err
	}
	if after == "" { // the first range has them
		if err := a.loadAllHits(ctx, l); err != nil {
			return "", false, err
		}
		if err := a.loadOverflows(ctx, l); err != nil {
			return "", false, err
		}
	}
	if err := a.load(ctx, l); err != nil {
		return "", false, err
	}
	if err := a.streams.readCursors(ctx, nil); err != nil { // with the versions of names up to here
		return "", false, err
	}
	if err := a.streams.confirm(ctx); err != nil {
		return "", false, err
	}
	b := bounds{incomplete: a.streams.incomplete, erased: a.streams.erased,
		uniques: a.layout.UniquesFrom(a.streams.clock)}
	if began {
		// A stream is delisted when no window reaches back to its end; hashes live a little longer.
		b.complete = a.streams.clock - a.layout.Keep().Milliseconds() + time.Minute.Milliseconds()
	}
	for i := range a.streams.all {
		complete, err := a.read(ctx, i, l)
		if err != nil {
			return "", false, err
		}
		b.complete = max(b.complete, complete)
	}
	for _, s := range a.streams.all {
		s.marks = nil
	}
	if err := a.streams.readCursors(ctx, nil); err != nil { // what they mark as incomplete by now
		return "", false, err
	}
	if a.filled != nil {
		a.filled(l.bytes)
	}
	a.report.declared, a.report.provenFrom = a.streams.declared, max(a.report.provenFrom, b.complete)
	unread := a.report.compare(l, b)
	if err := a.judgeUnread(ctx, l, unread, b); err != nil {
		return "", false, err
	}
	if l.open {
		b.complete = a.report.provenFrom
		a.report.compareOverflows(l, a.streams.clock, b)
	}
	return l.to, !l.open, nil
}

// load reads cells until two thirds of the memory are full, because streams may show what Redis lacks.
func (a *auditor) load(ctx context.Context, l *ledger) error {
	page := sharePerPage * a.layout.Shards
	for at := l.after; ; at = l.to {
		names, more, err := a.streams.inspector.Names(ctx, at, page, a.streams.clock, a.streams.latest())
		if err != nil {
			return err
		}
		a.pace.wait(ctx, len(names))
		if more {
			l.to = names[len(names)-1]
		} else {
			l.open = true
		}
		names = a.keys.addUnlisted(names, at, l)
		if err := a.loadCounters(ctx, l, names); err != nil {
			return err
		}
		if l.open || l.bytes+l.snapshotBytes >= l.budget*2/3 {
			return nil
		}
	}
}

func (a *auditor) loadCounters(ctx context.Context, l *ledger, names []string) error {
	shards := make([][]string, a.layout.Shards)
	for _, name := range names {
		shard := a.layout.ShardOf(window.HashCounter([]byte(name)))
		if o := overflowOf(a.overflows[shard], []byte(name)); o == nil || !slices.Contains(o.names, name) {
			shards[shard] = append(shards[shard], name)
		}
	}
	most := max(1, hashesAtOnce/a.layout.HashesPerCounter())
	for shard, names := range shards {
		for chunk := range slices.Chunk(names, most) {
			err := a.inspect(ctx, l, shard, chunk, func(c inspect.FoundCounter, snapshot int) {
				l.addListed(c, snapshot, a.keys.uniques[window.HashCounter([]byte(c.Name))])
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *auditor) loadAllHits(ctx context.Context, l *ledger) error {
	l.all = make([]*counter, a.layout.Shards)
	for shard := range l.all {
		err := a.inspect(ctx, l, shard, []string{window.AllHits}, func(found inspect.FoundCounter, snapshot int) {
			l.all[shard] = &counter{name: found.Name, hash: window.HashCounter(nil), shard: shard, snapshot: snapshot}
			l.take(l.all[shard], found, false)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// inspect reads some counters of a shard, and passes each to take with its snapshot.
func (a *auditor) inspect(ctx context.Context, l *ledger, shard int, names []string,
	take func(c inspect.FoundCounter, snapshot int)) error {
	found, err := a.streams.inspect(ctx, shard, names, func(hash uint64) bool { return a.keys.uniques[hash] })
	if err != nil {
		return err
	}
	a.pace.wait(ctx, found.Hashes+len(a.streams.all))
	snapshot := l.addSnapshot(shard, found.Places, found.At, found.Until, false)
	for _, c := range found.Counters {
		take(c, snapshot)
		for _, bad := range c.Bad {
			a.report.differ("%v", bad)
		}
	}
	return nil
}

// read subtracts the messages of the stream with an index from a ledger. It returns the moment (Unix ms) up
// to which messages were stored that the stream lacks, or 0.
func (a *auditor) read(ctx context.Context, index int, l *ledger) (complete int64, err error) {
	s := a.streams.all[index]
	to := l.upTo(index)
	for _, c := range s.cursors {
		to = max(to, c.Furthest())
	}
	switch {
	case to == 0:
		return 0, nil
	case s.ended:
		a.report.missing(s.name, "was deleted")
		return s.latest / 1e6, nil
	}
	recount, err := consume.NewRecount(ctx, a.store, a.layout, a.limits, s.name, s.state.Subjects, s.cursors)
	if err != nil {
		return 0, err
	}
	r := &reading{
		stream: s, index: index, ledger: l, report: &a.report, recount: recount, pace: a.pace, bar: a.bar, log: a.log,
		to:        to,
		at:        s.state.BeforeFirst(),
		cursorKey: func(shard int) string { return a.store.Keys.Cursor(shard, s.name) }, finished: make(chan struct{}),
	}
	return r.subtract(ctx)
}

func (a *auditor) judgeKeys(ctx context.Context) error {
	for _, odd := range a.keys.oddities {
		still, err := a.streams.inspector.Recheck(ctx, odd)
		if err != nil {
			return err
		}
		if still {
			a.report.differ("key %s: %s", odd.Key, odd.What)
		}
	}
	listed, err := a.store.Streams(ctx)
	if err != nil {
		return err
	}
	for _, name := range a.streams.unlisted {
		if _, there := listed[name]; !there {
			a.report.differ("stream %s has cursors, and is not listed among the streams", name)
		}
	}
	return nil
}

// judgeUnread judges counted counters that the streams show and Redis does not list, and counters whose first
// unique cells came after the sweep.
func (a *auditor) judgeUnread(ctx context.Context, l *ledger, unread []*counter, b bounds) error {
	slices.SortFunc(unread, func(a, b *counter) int { return cmp.Compare(a.name, b.name) })
	uniques := a.layout.Uniques()
	for _, c := range unread {
		found, err := a.streams.inspect(ctx, a.layout.ShardOf(c.hash), []string{c.name}, func(uint64) bool {
			return true
		})
		if err != nil {
			return err
		}
		have := make(map[uint64]int64)
		cells := c.cells
		if c.listed {
			cells = nil // they are judged
		} else {
			a.report.counters++
		}
		for _, f := range found.Counters[0].Cells {
			have[keyOf(f.CellID)] = f.N
		}
		for _, cell := range cells {
			id := idOf(cell.key)
			// There may be more by now, because these cells were read later than the cursors.
			if cell.redis = have[cell.key]; cell.redis < cell.streams && a.layout.CellExpires(id, c.hash) > found.At {
				a.report.judge(a.layout, c, id, cell, b)
			}
		}
		for i := range c.unique {
			u := &c.unique[i]
			for _, f := range found.Counters[0].Uniques {
				if keyOf(f.CellID) == u.key {
					u.redis = *f.Sketch
				}
			}
			if len(u.streams.AppendAbove(nil, &u.redis)) > 0 && uniques.CellExpires(idOf(u.key), c.hash) > found.At {
				u.streams.Merge(&u.redis) // only what Redis lacks is judged
				a.report.judgeUnique(a.layout, c, u, b)
			}
		}
	}
	return nil
}
