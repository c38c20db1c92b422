package bench_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/unique"
	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

const (
	uniqueCounters = 500
	// uniquesPerDay are the visits of all these counters together: counter i has a share of 1/(i+1).
	uniquesPerDay  = 500_000
	uniquesWindows = `["1h","24h","30d"]`
	uniquesAsked   = 100 // times per run
	// densestCell bounds what is added to a cell: with more, it costs no more.
	densestCell = 20_000
)

// counting is a question about uniques.
type counting struct {
	sample
	counters int // per request
}

func (c *counting) path() string { return "uniques/" + c.name }

// measureUniques asks how many different ones 500 counters had in an hour, a day and a month: all at once, and one
// counter at a time.
func measureUniques(t *testing.T, r *rig, o options) []*counting {
	wanted := chosen(o, (*counting).path,
		&counting{sample{name: "500 counters × 3 windows"}, uniqueCounters},
		&counting{sample{name: "50 counters × 3 windows"}, uniqueCounters / 10},
		&counting{sample{name: "1 counter × 3 windows"}, 1})
	if len(wanted) == 0 {
		return nil
	}
	r.empty(t)
	cells, bytes := r.fillUniques(t, o.size(uniquesPerDay))
	fmt.Printf("uniques: %d cells of %d bytes are written\n", cells, bytes/int64(cells))
	q := stack.Query(t, r.redis, "TALLYROLL_NAMESPACE="+namespace, "LOG_LEVEL=warn")
	client := httpClient(t, 1)
	inTurns(t, o, wanted, (*counting).path, func(t *testing.T, c *counting, run int) {
		asked := o.size(uniquesAsked)
		if c.counters == 1 {
			asked *= 10
		}
		before := len(c.took)
		r.askOneByOne(t, &c.sample, q, asked, func(i int) {
			require.NoError(t, askOnce(t.Context(), client, http.MethodPost, q.URL()+"/v1/uniques", c.body(i)))
		})
		fmt.Printf("%s run %d: p50 %v, p99 %v, query %.2f ms, Redis %.2f ms\n", c.path(), run+1,
			percentile(c.took[before:], 50), percentile(c.took[before:], 99), c.last("query")/1e3, c.last("redis")/1e3)
	})
	return wanted
}

// body is the request of a round: about other counters each time, if it is not about all.
func (c *counting) body(round int) string {
	keys := make([]string, c.counters)
	for i := range keys {
		keys[i] = fmt.Sprintf("%q", counterName((round*c.counters+i)%uniqueCounters))
	}
	return `{"keys":[` + strings.Join(keys, ",") + `],"windows":` + uniquesWindows + `}`
}

// fillUniques writes the cells of all counters that the windows touch, as visits that are spread evenly would, and
// returns how many these are and what they take in Redis.
func (r *rig) fillUniques(t *testing.T, perDay int) (cells int, bytes int64) {
	t.Helper()
	ctx := t.Context()
	uniqueTiers, err := window.ParseUniqueTiers(window.DefaultUniqueTiers)
	require.NoError(t, err)
	layout := window.Layout{Tiers: mustTiers(t, window.DefaultTiers), UniqueTiers: uniqueTiers, Shards: queriedShards}
	store := window.NewStore(r.rdb, namespace)
	require.NoError(t, store.EnsureLayout(ctx, layout))
	require.NoError(t, store.AddStream(ctx, "HITS"))
	now, empty := time.Now(), window.NewBatch(layout)
	cursor := window.Cursor{Created: now.Add(-60 * 24 * time.Hour).UnixNano(), Seq: 1, Stored: now.UnixNano(), AsOf: now.UnixMilli()}
	for shard := range layout.Shards {
		w, err := store.OpenWriter(ctx, layout, "HITS", shard)
		require.NoError(t, err)
		if _, err := w.Commit(ctx, empty.Shard(shard), cursor); err != nil {
			t.Fatal(err)
		}
	}
	harmonic := 0.0
	for i := range uniqueCounters {
		harmonic += 1 / float64(i+1)
	}
	before := r.dataBytes(t)
	random, pipe := rand.New(rand.NewPCG(1, 2)), r.rdb.Pipeline()
	for i := range uniqueCounters {
		name := counterName(i)
		shard := layout.ShardOf(window.HashCounter([]byte(name)))
		daily := float64(perDay) / harmonic / float64(i+1)
		for _, tier := range layout.UniqueTiers {
			length := tier.Cell.Milliseconds()
			n := int(daily * float64(length) / float64(24*time.Hour.Milliseconds()))
			last := now.UnixMilli() / length
			for number := last - int64(tier.Window/tier.Cell); number <= last; number++ {
				key := fmt.Sprintf("%s:{%d}:u:%s:%d:%s", namespace, shard, window.FormatDuration(tier.Cell), number, name)
				addUniques(t, ctx, pipe, key, min(max(n, 1), densestCell), random)
				cells++
				if pipe.Len() >= 100 {
					_, err := pipe.Exec(ctx)
					require.NoError(t, err)
				}
			}
		}
	}
	_, err = pipe.Exec(ctx)
	require.NoError(t, err)
	return cells, r.dataBytes(t) - before
}

// addUniques adds so many different ones to a cell.
func addUniques(t *testing.T, ctx context.Context, c redis.Cmdable, key string, n int, random *rand.Rand) {
	t.Helper()
	args := make([]any, 0, min(n, 2000))
	for n > 0 {
		args = args[:0]
		for range min(n, cap(args)) {
			args = append(args, unique.Of(fmt.Append(nil, random.Uint64())).Argument())
		}
		require.NoError(t, c.PFAdd(ctx, key, args...).Err())
		n -= len(args)
	}
}

// Everything that is measured is answered.
func checkUniques(t *testing.T, r *rig) {
	all := measureUniques(t, r, options{runs: 1, scale: 1.0 / uniquesAsked, only: everything})
	if len(all) != 3 || len(all[0].took) != 1 || len(all[2].took) != 10 {
		t.Fatalf("%+v", all)
	}
}
