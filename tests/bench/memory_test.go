package bench_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/boot"
	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// footprint is how many bytes of Redis a counter takes, by the rate of its hits.
type footprint struct {
	name  string
	ours  bool
	bytes []float64 // of footprintRates; 0 where it was not measured
}

// rate of one counter's hits, evenly spread.
type rate struct {
	name   string
	period int64 // milliseconds from one hit to the next
}

var footprintRates = []rate{
	{"1 hit a day", 24 * hour},
	{"1,000 hits an hour", 3600},
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
func measureMemory(t *testing.T, r *rig, o options) (out []footprint) {
	measure := func(f footprint, of func(t *testing.T, rate rate) float64) {
		if !o.wants("memory/" + f.name) {
			return
		}
		for _, rate := range footprintRates {
			subtest(t, "memory/"+f.name+"/"+rate.name, func(t *testing.T) { f.bytes = append(f.bytes, of(t, rate)) })
		}
		fmt.Printf("memory/%s: %.0f bytes a counter\n", f.name, f.bytes)
		out = append(out, f)
	}
	for _, tiers := range footprintTiers {
		measure(footprint{name: tiers.name, ours: true}, func(t *testing.T, rate rate) float64 {
			return r.tierBytes(t, tiers.tiers, rate, o.counters(rate))
		})
	}
	for _, tech := range techniques {
		measure(footprint{name: fmt.Sprintf("%s, %s", tech.name, window.FormatDuration(tech.window))}, func(t *testing.T, rate rate) float64 {
			counters := o.counters(rate)
			if tech.single && rate.period < hour {
				counters = max(3, o.size(20)) // up to 86,400 members each
			}
			return r.techniqueBytes(t, tech, rate, counters)
		})
	}
	return out
}

// memoryRows are the rows of the table; ratios are to the default tiers.
func memoryRows(all []footprint) (rows []string) {
	for _, f := range all {
		cells := []string{f.name}
		for i, b := range f.bytes {
			text := boot.Thousands(b)
			if first := all[0]; first.ours && f.name != first.name {
				text += fmt.Sprintf(" (%s×)", short(b/first.bytes[i]))
			}
			cells = append(cells, text)
		}
		rows = append(rows, cellsOf(cells...))
	}
	return rows
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

// tierBytes commits what tiers hold through the production writer. Moments lie
// ahead of now, because it does not write what has expired by Redis's clock.
func (r *rig) tierBytes(t *testing.T, text string, rate rate, counters int) float64 {
	t.Helper()
	r.empty(t)
	tiers := mustTiers(t, text)
	layout := window.Layout{Tiers: tiers, Shards: 1}
	w, err := window.NewStore(r.rdb, namespace).OpenWriter(t.Context(), layout, "HITS", 0)
	require.NoError(t, err)
	batch, cells := window.NewBatch(layout), 0
	var cursor window.Cursor
	commit := func() {
		cursor.Seq++
		if _, err := w.Commit(t.Context(), batch.Shard(0), cursor); err != nil {
			t.Fatal(err)
		}
		batch.Reset()
		cells = 0
	}
	commit() // the cursor is not the counters'
	before := r.restingBytes(t)

	longest := 2 * tiers[len(tiers)-1].Window.Milliseconds()
	for i := range counters {
		name := []byte(counterName(i))
		hash := window.HashCounter(name)
		now := time.Now().UnixMilli() + longest*int64(i)/int64(counters)
		// From tier to tier steps become as long as its cells: finer ones are gone by then.
		at, tier, due := now-rate.period*int64(i)/int64(counters), 0, int64(0)
		for {
			for tier < len(tiers) && !(window.Layout{Tiers: tiers[tier : tier+1], Shards: 1}).Holds(hash, at, now) {
				tier++
			}
			if tier == len(tiers) {
				break
			}
			step := max(rate.period, tiers[tier].Cell.Milliseconds())
			due += step
			batch.Add(name, hash, at, now, due/rate.period)
			due %= rate.period
			at -= step
			if cells++; cells >= 200 { // a batch looks a counter's cells through one by one
				commit()
			}
		}
	}
	commit()
	r.dropSummaries(t)
	return float64(r.restingBytes(t)-before) / float64(counters)
}

// dropSummaries takes away what a stream has, and not a counter: with so few
// counters it would be most of the bytes.
func (r *rig) dropSummaries(t *testing.T) {
	t.Helper()
	keys := stack.Scan(t, r.rdb, namespace+":{*}:top:*")
	if len(keys) == 0 {
		return
	}
	require.NoError(t, r.rdb.Del(t.Context(), keys...).Err())
}

// techniqueBytes counts what a technique keeps.
func (r *rig) techniqueBytes(t *testing.T, tech technique, rate rate, counters int) float64 {
	t.Helper()
	ctx := t.Context()
	r.empty(t)
	require.NoError(t, tech.load(ctx, r.rdb))
	before := r.restingBytes(t)
	p := newPipelined(r.rdb, tech, 100)
	for i := range counters {
		now := time.Now().UnixMilli() + 14*day.Milliseconds()*int64(i)/int64(counters)
		tech.history(now, rate.period, func(at, n int64) {
			h := aHit{counterName(i), at, n}
			if tech.name == hashPerGranularity.name {
				fillGranularities(ctx, p.pipe, h, now)
				if p.pipe.Len() >= 100 {
					require.NoError(t, p.flush(ctx))
				}
				return
			}
			require.NoError(t, p.count(ctx, h))
		})
	}
	if p.pipe.Len() > 0 {
		require.NoError(t, p.flush(ctx))
	}
	return float64(r.restingBytes(t)-before) / float64(counters)
}

// history yields, from old to new, the hits whose traces a technique keeps at a
// moment: hit by hit, or added up by the finest cell that it still has of their time.
func (t technique) history(now, period int64, yield func(at, n int64)) {
	reach := t.window.Milliseconds()
	switch t.name {
	case twoKeys.name: // the other hash lives for a window after its last hit
		epoch := 2 * t.window.Milliseconds()
		if reach = now % epoch; reach < t.window.Milliseconds()+minute {
			reach += epoch
		}
	case hashPerGranularity.name: // this span and the one before, of each
		reach *= 2
	}
	cell := func(age int64) int64 {
		switch {
		case t.single:
			return 0
		case t.name != hashPerGranularity.name:
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

// fillGranularities counts a hit of the past in the hashes that are alive at a moment.
func fillGranularities(ctx context.Context, p redis.Pipeliner, h aHit, now int64) {
	for _, g := range granularities {
		if key, field, expiry := g.place(h); expiry.UnixMilli() > now {
			p.HIncrBy(ctx, key, field, h.n)
			p.ExpireAt(ctx, key, expiry)
		}
	}
}
