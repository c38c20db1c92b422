package audit

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"golang.org/x/time/rate"

	"tallyroll/internal/consume"
	"tallyroll/internal/progress"
	"tallyroll/internal/window"
)

// auditor compares a namespace with its streams.
type auditor struct {
	store     *window.Store
	js        jetstream.JetStream
	namespace string
	limits    consume.Limits
	memory    int // bytes of a pass
	log       zerolog.Logger
	bar       *progress.Bar
	pace      *rate.Limiter // of messages, hashes and keys
	report    report

	layout    window.Layout
	inspector *window.Inspector
	streams   []*stream
	unlisted  []string // streams that have cursors and are not listed
	admitted  []int64  // by shard, Unix milliseconds; see judgement
	erased    []int64  // by shard; see judgement
	clock     int64    // of Redis, Unix milliseconds, when it was last read
	odd       []window.Oddity
	uniques   map[uint64]bool // hashes of the counters that had unique cells
	unnamed   []string        // counters that have cells and are not listed, in order
	said      map[string]bool // cursors that are listed as differences
	passes    int
	filled    func(bytes int) // optional hook, called with the bytes that a pass used
}

const (
	// sharePerPage bounds the counters of a shard in one read, as hashesAtOnce bounds their hashes.
	sharePerPage = 64
	// hashesAtOnce bounds one transaction, which blocks Redis: for 3 ms if all hashes are full.
	hashesAtOnce = 128
	// maxOdd bounds the suspicious keys that are remembered.
	maxOdd = 10_000
)

// audit judges the whole namespace. Its error is the reason why it could not.
func (a *auditor) audit(ctx context.Context) error {
	var err error
	if a.layout, err = a.store.Layout(ctx); err != nil {
		return err
	}
	a.admitted, a.erased, a.said, a.uniques = make([]int64, a.layout.Shards), make([]int64, a.layout.Shards), make(map[string]bool), make(map[uint64]bool)
	streams, err := a.sweep(ctx)
	if err != nil {
		return err
	}
	if err := a.findStreams(ctx, streams); err != nil {
		return err
	}
	if err := a.readCursors(ctx, nil); err != nil {
		return err
	}
	if err := a.judgeStreams(ctx); err != nil {
		return err
	}
	began, err := window.HasBegan(ctx, a.store)
	if err != nil {
		return err
	}
	for after, more := "", true; more; {
		if after, more, err = a.pass(ctx, after, began); err != nil {
			return err
		}
	}
	now, err := a.store.Layout(ctx)
	if err == nil && (now.Shards != a.layout.Shards || !slices.Equal(now.Tiers, a.layout.Tiers)) {
		err = fmt.Errorf("%w: the namespace was made anew meanwhile: run again", errUnjudged)
	}
	if err != nil {
		return err
	}
	return a.judgeKeys(ctx)
}

func (a *auditor) wait(ctx context.Context, items int) {
	for ; items > 0; items -= a.pace.Burst() {
		_ = a.pace.WaitN(ctx, min(items, a.pace.Burst())) // it fails when ctx ends, which the caller's read reports
	}
}

// sweep reads all keys. It returns the streams with cursors.
func (a *auditor) sweep(ctx context.Context) (streams []string, err error) {
	err = window.Inspect(a.store, a.layout, nil).Sweep(ctx, func(found window.Swept) error {
		a.wait(ctx, found.Keys)
		for _, hash := range found.Uniques {
			a.uniques[hash] = true
		}
		for _, name := range found.Streams {
			if !slices.Contains(streams, name) {
				streams = append(streams, name)
			}
		}
		for _, odd := range found.Odd {
			if len(a.odd) >= maxOdd {
				return fmt.Errorf("%w: more than %d keys are not as a worker leaves them, such as %s: %s: does something else write to the namespace?", errUnjudged, maxOdd, odd.Key, odd.What)
			}
			a.odd = append(a.odd, odd)
			if odd.Counter != "" {
				a.unnamed = append(a.unnamed, odd.Counter)
			}
		}
		return ctx.Err()
	})
	slices.Sort(a.unnamed)
	a.unnamed = slices.Compact(a.unnamed)
	return streams, err
}

func (a *auditor) judgeKeys(ctx context.Context) error {
	for _, odd := range a.odd {
		still, err := a.inspector.Again(ctx, odd)
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
	for _, name := range a.unlisted {
		if _, there := listed[name]; !there {
			a.report.differ("stream %s has cursors, and is not listed among the streams", name)
		}
	}
	return nil
}

// pass judges as many counters after a name as fit into memory. It returns the last, and whether more follow.
func (a *auditor) pass(ctx context.Context, after string, began bool) (to string, more bool, err error) {
	a.passes++
	l := newLedger(a.layout, after, a.memory)
	for _, s := range a.streams {
		s.marks = make(map[uint64][]namedMessage)
	}
	err = a.readCursors(ctx, func(shard int, places []window.Place, at time.Time) {
		l.note(shard, places, (at.UnixMilli()+999)/1000, at.UnixMilli(), true)
	})
	if err != nil {
		return "", false, err
	}
	if err := a.load(ctx, l); err != nil {
		return "", false, err
	}
	if err := a.readCursors(ctx, nil); err != nil { // with the versions of names up to here
		return "", false, err
	}
	if err := a.judgeStreams(ctx); err != nil {
		return "", false, err
	}
	by := judgement{admitted: a.admitted, erased: a.erased, uniques: a.layout.UniquesFrom(a.clock)}
	if began {
		// A stream is delisted when no window reaches back to its end; hashes live a little longer.
		by.complete = a.clock - a.layout.Keep().Milliseconds() + time.Minute.Milliseconds()
	}
	for i := range a.streams {
		complete, err := a.read(ctx, i, l)
		if err != nil {
			return "", false, err
		}
		by.complete = max(by.complete, complete)
	}
	for _, s := range a.streams {
		s.marks = nil
	}
	if err := a.readCursors(ctx, nil); err != nil { // what they admit by now
		return "", false, err
	}
	if a.filled != nil {
		a.filled(l.bytes)
	}
	strays := a.report.compare(l, by)
	if err := a.judgeStrays(ctx, l, strays, by); err != nil {
		return "", false, err
	}
	return l.to, !l.open, nil
}

// load reads cells until two thirds of the memory are full, because streams may show what Redis lacks.
func (a *auditor) load(ctx context.Context, l *ledger) error {
	page := sharePerPage * a.layout.Shards
	for at := l.after; ; at = l.to {
		names, more, err := a.inspector.Names(ctx, at, page, a.clock, a.latest())
		if err != nil {
			return err
		}
		a.wait(ctx, len(names))
		if more {
			l.to = names[len(names)-1]
		} else {
			l.open = true
		}
		names = a.withUnnamed(names, at, l)
		if err := a.loadCounters(ctx, l, names); err != nil {
			return err
		}
		if l.open || l.bytes+l.lookBytes >= l.budget*2/3 {
			return nil
		}
	}
}

// latest is when the latest message that any cursor names was stored, in Unix milliseconds.
func (a *auditor) latest() (at int64) {
	for _, s := range a.streams {
		at = max(at, s.latest/1e6)
	}
	return at
}

func (a *auditor) withUnnamed(names []string, after string, l *ledger) []string {
	for _, name := range a.unnamed {
		if name > after && (l.open || name <= l.to) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (a *auditor) loadCounters(ctx context.Context, l *ledger, names []string) error {
	shards := make([][]string, a.layout.Shards)
	for _, name := range names {
		shard := a.layout.ShardOf(window.HashCounter([]byte(name)))
		shards[shard] = append(shards[shard], name)
	}
	most := max(1, hashesAtOnce/a.layout.HashesPerCounter())
	for shard, names := range shards {
		for chunk := range slices.Chunk(names, most) {
			found, err := a.inspect(ctx, shard, chunk, func(hash uint64) bool { return a.uniques[hash] })
			if err != nil {
				return err
			}
			a.wait(ctx, found.Hashes+len(a.streams))
			look := l.note(shard, found.Places, found.At, found.Until, false)
			for _, c := range found.Counters {
				l.enter(c, look, a.uniques[window.HashCounter([]byte(c.Name))])
				for _, bad := range c.Bad {
					a.report.differ("%v", bad)
				}
			}
		}
	}
	return nil
}

func (a *auditor) inspect(ctx context.Context, shard int, names []string, withUniques func(uint64) bool) (window.Found, error) {
	var found window.Found
	err := a.retry(ctx, func() (err error) {
		found, err = a.inspector.Read(ctx, shard, names, a.clock-clockSlack, a.latest(), withUniques)
		return err
	})
	if err == nil {
		a.clock = max(a.clock, found.At*1000)
		a.observe(shard, found.Places, found.At*1000)
	}
	return found, err
}

// clockSlack, in milliseconds, is how far the clocks of a cluster's nodes may differ: a read includes what
// one of them still holds, whatever another one's clock.
const clockSlack = 10_000

// retry asks Redis again after a failure: a slot may have moved, or a master may have died.
func (a *auditor) retry(ctx context.Context, ask func() error) (err error) {
	for range 20 {
		if err = ask(); err == nil || window.IsForeign(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retryAfter):
		}
	}
	return err
}

// judgeStrays judges counted counters that the streams show and Redis does not list, and counters whose first
// unique cells came after the sweep.
func (a *auditor) judgeStrays(ctx context.Context, l *ledger, strays []*counter, by judgement) error {
	slices.SortFunc(strays, func(a, b *counter) int { return cmp.Compare(a.name, b.name) })
	uniques := a.layout.Uniques()
	for _, c := range strays {
		found, err := a.inspect(ctx, a.layout.ShardOf(c.hash), []string{c.name}, func(uint64) bool { return true })
		if err != nil {
			return err
		}
		have := make(map[uint64]int64)
		cells := c.cells
		if c.found {
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
				a.report.judge(a.layout, c, id, cell, by)
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
				a.report.judgeUnique(a.layout, c, u, by)
			}
		}
	}
	return nil
}
