package bench_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/platform/human"
	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// footprint is how many bytes of Redis a counter takes: its figures are named for the rates of hits.
type footprint struct {
	sample
	Base  *sample // the default tiers
	bytes func(t *testing.T, rate rate) float64
}

// rate of one counter's hits, evenly spread.
type rate struct {
	Name   string
	period int64 // milliseconds from one hit to the next
}

var footprintRates = []rate{
	{"1 hit a day", 24 * hour},
	{"3", 8 * hour},
	{"10", 24 * hour / 10},
	{"30", 24 * hour / 30},
	{"100", 24 * hour / 100},
	{"1,000", 24 * hour / 1000},
	{"a hit a second: every cell", second},
}

var footprintTiers = []struct{ name, tiers string }{
	{"Tallyroll, default tiers: " + window.DefaultTiers, window.DefaultTiers},
	{"Tallyroll, 1m/1h", "1m/1h"},
	{"Tallyroll, 15m/1d", "15m/1d"},
	{"Tallyroll, 1h/32d", "1h/32d"},
	{"Tallyroll, 6h/32d", "6h/32d"},
	{"Tallyroll, 1s/1h,1m/1d", "1s/1h,1m/1d"},
	{"Tallyroll, 1s/1h,1m/1d,1h/7d: the windows of a hash per granularity", "1s/1h,1m/1d,1h/7d"},
}

// measureMemory fills Redis with what is alive at a moment, for counters that
// each have another moment, spread over the longest epoch: the mean is that of
// many counters, and of one over time.
func measureMemory(t *testing.T, r *rig, o options) []*footprint {
	var all []*footprint
	add := func(name string, bytes func(t *testing.T, rate rate) float64) {
		all = append(all, &footprint{sample: sample{part: "memory", name: name}, bytes: bytes})
		all[len(all)-1].Base = &all[0].sample
	}
	for _, tiers := range footprintTiers {
		add(tiers.name, func(t *testing.T, rate rate) float64 { return r.tierBytes(t, tiers.tiers, rate, o.counters(rate)) })
	}
	for _, tech := range techniques {
		add(tech.name+", "+human.FormatDuration(tech.window), func(t *testing.T, rate rate) float64 {
			counters := o.counters(rate)
			if tech.single && rate.period < hour {
				counters = max(3, o.size(20)) // up to 86,400 members each
			}
			return r.techniqueBytes(t, tech, rate, counters)
		})
	}
	all = chosen(o, all...)
	for _, f := range all {
		for _, rate := range footprintRates {
			subtest(t, f.path()+"/"+rate.Name, func(t *testing.T) { f.add(rate.Name, f.bytes(t, rate)) })
		}
		f.print(0, nil)
	}
	return all
}

// counters is how many share a measurement: the more, the less of a hash each has.
func (o options) counters(r rate) int {
	if r.period < hour {
		return max(50, o.size(100))
	}
	return max(200, o.size(5000))
}

// restingBytes is dataBytes once Redis has looked at its clients' buffers again,
// which it does ten times a second.
func (r *rig) restingBytes(t *testing.T) int64 {
	t.Helper()
	time.Sleep(300 * time.Millisecond)
	return r.dataBytes(t)
}

// tierBytes is what a counter takes in Redis. With logs, and unless that is too much work, its hits come as
// in life (livedBytes). Otherwise what is alive is committed: moments lie ahead of now, because the writer
// does not write what has expired by Redis's clock.
func (r *rig) tierBytes(t *testing.T, text string, rate rate, counters int) float64 {
	t.Helper()
	r.empty(t)
	tiers := tiersOf(text)
	layout := window.Layout{Tiers: tiers, Shards: 1}
	if logs, ok := layout.SparseTier(); ok && logs.EpochMillis()/rate.period < 4000 {
		return r.livedBytes(t, layout, rate, min(counters, 1000))
	}
	b := r.backfill(t, layout)
	before := r.restingBytes(t) // the cursor is not the counters'

	longest := 2 * tiers[len(tiers)-1].Window.Milliseconds()
	moment := func(i int) int64 { return b.now.UnixMilli() + longest*int64(i)/int64(counters) }
	b.store.MaxLogBytes = 1 // all hits go into the tiers
	b.addBusy(tiers, rate, counters, moment)
	// The summaries and the sum of all hits are the stream's and the shard's, and not a counter's: with so few
	// counters they would be most of the bytes.
	for _, pattern := range []string{namespace + ":{*}:top:*", namespace + ":{*}:h:*:"} {
		if keys := stack.Scan(t, r.rdb, pattern); len(keys) > 0 {
			require.NoError(t, r.rdb.Del(t.Context(), keys...).Err())
		}
	}
	return float64(r.restingBytes(t)-before) / float64(counters)
}

// livedBytes is the mean over two epochs of logs, which lie ahead of now, so that Redis keeps what is expired
// by the clock of the hits.
func (r *rig) livedBytes(t *testing.T, layout window.Layout, rate rate, counters int) float64 {
	t.Helper()
	const samples = 16
	b := r.backfillAt(t, layout)
	others := stack.Scan(t, r.rdb, namespace+":*")
	logs, _ := layout.SparseTier()
	at := b.now.UnixMilli() + hour
	next := at + warmUp(logs)
	sum := int64(0)
	for range samples {
		b.live(at, next, livedCounters{0, counters, rate.period})
		sum += r.bytesAt(t, next, others)
		at, next = next, next+2*logs.EpochMillis()/samples
	}
	return float64(sum) / samples / float64(counters)
}

// warmUp is how long a counter must have had hits so that all of its keys are as they will be: those of the
// longest life, and an epoch of logs before, by which a writer knows busy counters.
func warmUp(logs window.Tier) int64 {
	return 3*logs.EpochMillis() + logs.Window.Milliseconds()/4
}

// placeBytes is what Redis takes for a key in addition to its MEMORY USAGE: its places in the tables of keys
// and of expiries.
const placeBytes = 61

// bytesAt is what the keys take that are alive at a moment. Those that are not are removed. Others, the
// summaries and the sum of all hits are the stream's and the shard's, and not a counter's.
func (r *rig) bytesAt(t *testing.T, now int64, others []string) (sum int64) {
	t.Helper()
	ctx := t.Context()
	for keys := range slices.Chunk(stack.Scan(t, r.rdb, namespace+":{*}:*"), 1000) {
		deadlines, err := r.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, key := range keys {
				p.ExpireTime(ctx, key)
			}
			return nil
		})
		require.NoError(t, err)
		replies, err := r.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i, key := range keys {
				deadline := deadlines[i].(*redis.DurationCmd).Val()
				switch {
				case deadline > 0 && deadline.Milliseconds() <= now:
					p.Del(ctx, key)
				case !slices.Contains(others, key) && !strings.Contains(key, "}:top:") && !strings.HasSuffix(key, ":"):
					p.MemoryUsage(ctx, key, 0)
				}
			}
			return nil
		})
		require.NoError(t, err)
		for _, reply := range replies {
			if reply.Name() == "memory" {
				sum += reply.(*redis.IntCmd).Val() + placeBytes
			}
		}
	}
	return sum
}

// addBusy writes what tiers hold.
func (b *backfill) addBusy(tiers window.Tiers, rate rate, counters int, moment func(i int) int64) {
	for i := range counters {
		hash, now := window.HashCounter([]byte(counterName(i))), moment(i)
		heldCells(tiers, hash, now-rate.period*int64(i)/int64(counters), now, rate.period, func(at, n int64) {
			b.add(i, at, now, n)
			if b.cells >= 200 { // a batch looks a counter's cells through one by one
				b.commit()
			}
		})
	}
	b.commit()
}

// heldCells calls each with what tiers hold at a moment of a counter that is hit every so often, from its
// latest hits on. From tier to tier steps become as long as its cells: finer ones are gone by then.
func heldCells(tiers window.Tiers, counterHash uint64, latest, now, period int64, each func(at, n int64)) {
	tier, due := 0, int64(0)
	for at := latest; ; {
		for tier < len(tiers) && !(window.Layout{Tiers: tiers[tier : tier+1], Shards: 1}).Holds(counterHash, at, now) {
			tier++
		}
		if tier == len(tiers) {
			return
		}
		step := max(period, tiers[tier].Cell.Milliseconds())
		due += step
		each(at, due/period)
		due %= period
		at -= step
	}
}

// techniqueBytes counts what a technique keeps.
func (r *rig) techniqueBytes(t *testing.T, tech *technique, rate rate, counters int) float64 {
	t.Helper()
	ctx := t.Context()
	r.empty(t)
	tech.load(t, r.rdb)
	before := r.restingBytes(t)
	p := newPipeline(r.rdb, 100)
	for i := range counters {
		now := time.Now().UnixMilli() + 14*day.Milliseconds()*int64(i)/int64(counters)
		tech.history(now, rate.period, func(at, n int64) {
			h := aHit{counterName(i), at, n}
			if tech != &hashPerGranularity {
				require.NoError(t, p.count(ctx, tech, h))
				return
			}
			require.NoError(t, countGranularities(ctx, p, h, now))
			if p.Len() >= 100 {
				require.NoError(t, p.flush(ctx))
			}
		})
	}
	require.NoError(t, p.flush(ctx))
	return float64(r.restingBytes(t)-before) / float64(counters)
}

// history yields, from old to new, the hits whose traces a technique keeps at a
// moment: hit by hit, or added up by the finest cell that it still has of their time.
func (t *technique) history(now, period int64, yield func(at, n int64)) {
	reach := t.window.Milliseconds()
	if t == &hashPerGranularity { // this span and the one before, of each
		reach *= 2
	}
	cell := func(age int64) int64 {
		switch {
		case t.single:
			return 0
		case t != &hashPerGranularity:
			return minute
		}
		for _, g := range granularities {
			if age <= 2*g.cell*g.cells {
				return g.cell
			}
		}
		return hour
	}
	due := int64(0)
	for at := now - reach + 1; at <= now; {
		step := max(period, cell(now-at))
		if at == now-reach+1 { // the first hit lies anywhere in its step
			at += step * (now % 1009) / 1009
		}
		if due += step; at <= now {
			yield(at, due/period)
		}
		due %= period
		at += step
	}
}
