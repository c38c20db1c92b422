package bench_test

import (
	"fmt"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

const (
	totalsCounters = 100 // of each rate
	totalsTimes    = 2000
)

// measureLived asks for totals of counters that have been hit evenly for as long as any of their keys lives,
// one after the other.
func measureLived(t *testing.T, r *rig, o options) []*sample {
	type total struct {
		sample
		first int
		span  string
	}
	rates := footprintRates[:len(footprintRates)-1]
	var all []*total
	for i, rate := range rates {
		for _, span := range []string{"24h", "30d"} {
			name := fmt.Sprintf("%s of %s", span, rate.Name)
			all = append(all, &total{sample: sample{part: "totals", name: name}, first: i * totalsCounters, span: span})
		}
	}
	all = chosen(o, all...)
	if len(all) == 0 {
		return nil
	}
	wanted := map[int]rate{}
	for _, c := range all {
		wanted[c.first] = rates[c.first/totalsCounters]
	}
	r.fillLived(t, wanted, max(1, o.size(totalsCounters)))
	q := r.startQuery(t)
	client := httpClient(t, 1)
	ask := func(c *total, i int) {
		counter := counterName(c.first + i%max(1, o.size(totalsCounters)))
		mustFetch(t, client, q.URL()+"/v1/total?window="+c.span+"&key="+counter)
	}
	inTurns(t, o, all, func(t *testing.T, c *total, _ int) {
		ask(c, 0) // connects
		r.askOneByOne(t, &c.sample, q, o.size(totalsTimes), func(i int) { ask(c, i) })
	})
	var out []*sample
	for _, c := range all {
		out = append(out, &c.sample)
	}
	return out
}

// fillLived counts the hits of counters with each rate, by the first counter's number, as they came until
// now. That goes into a Redis whose clock is behind, so that it keeps what expires meanwhile, and is then
// copied.
func (r *rig) fillLived(t *testing.T, rates map[int]rate, counters int) {
	t.Helper()
	r.empty(t)
	layout := window.Layout{Tiers: defaultTiers, Shards: 1}
	logs, _ := layout.SparseTier()
	long := time.Duration(warmUp(logs)) * time.Millisecond
	behind := stack.Redis(t, stack.RedisClockAhead(t, -long-day), stack.RedisArgs("--appendonly", "no"))
	past := &rig{nats: r.nats, redis: behind, js: r.js, rdb: behind.Client()}
	b := past.backfillAt(t, layout)
	now := time.Now().UnixMilli()
	var sets []livedCounters
	for first, rate := range rates {
		sets = append(sets, livedCounters{first, counters, rate.period})
	}
	b.live(now-warmUp(logs), now, sets...)
	ctx := t.Context()
	for keys := range slices.Chunk(stack.Scan(t, past.rdb, "*"), 1000) {
		copied, err := past.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, key := range keys {
				p.Dump(ctx, key)
				p.ExpireTime(ctx, key)
			}
			return nil
		})
		require.NoError(t, err)
		_, err = r.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i, key := range keys {
				deadline := max(0, copied[2*i+1].(*redis.DurationCmd).Val()).Milliseconds()
				p.Do(ctx, "restore", key, deadline, copied[2*i].(*redis.StringCmd).Val(), "absttl")
			}
			return nil
		})
		require.NoError(t, err)
	}
}

// The totals of lived counters are what came.
func checkLived(t *testing.T, r *rig) {
	o := options{runs: 1, scale: 0.02, only: regexp.MustCompile("^totals/30d of (3|30)$")}
	all := measureLived(t, r, o)
	require.Contains(t, view{"Totals": all}.tables(t, o), "| 30d of 3 | ")
	q := r.startQuery(t)
	for _, i := range []int{1, 3} {
		rate := footprintRates[i]
		want := 30 * 24 * hour / rate.period
		total := stack.TotalOf(t, q.URL(), counterName(i*totalsCounters), "30d")
		require.InDelta(t, want, total.Total, 1+0.01*float64(want), rate.Name)
	}
}
