package bench_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/platform/human"
	"tallyroll/internal/unique"
	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

const (
	uniqueCounters = 500
	// uniquesPerDay are the visits of all these counters together: counter i has a share of 1/(i+1).
	uniquesPerDay = 500_000
	uniquesAsked  = 100 // times per run
	// densestCell bounds what is added to a cell: with more, it costs no more.
	densestCell = 20_000
)

// uniquesRun is a question about uniques.
type uniquesRun struct {
	sample
	counters int // per request
}

// measureUniques asks how many unique values 500 counters had in an hour, a day and a month: all at once,
// and one counter at a time.
func measureUniques(t *testing.T, r *rig, o options) []*uniquesRun {
	wanted := chosen(o,
		&uniquesRun{sample{part: "uniques", name: "500 counters × 3 windows"}, uniqueCounters},
		&uniquesRun{sample{part: "uniques", name: "50 counters × 3 windows"}, uniqueCounters / 10},
		&uniquesRun{sample{part: "uniques", name: "1 counter × 3 windows"}, 1})
	if len(wanted) == 0 {
		return nil
	}
	r.empty(t)
	cells, bytes := r.fillUniques(t, o.size(uniquesPerDay))
	fmt.Printf("uniques: %d cells of %d bytes are written\n", cells, bytes/int64(cells))
	q := r.startQuery(t)
	client := httpClient(t, 1)
	inTurns(t, o, wanted, func(t *testing.T, c *uniquesRun, _ int) {
		asked := o.size(uniquesAsked)
		if c.counters == 1 {
			asked *= 10
		}
		r.askOneByOne(t, &c.sample, q, asked, func(i int) {
			// About other counters each time, if it is not about all.
			body := totalsBody(i*c.counters%uniqueCounters, c.counters, "1h", "24h", "30d")
			require.NoError(t, postOnce(client, q.URL()+"/v1/uniques", jsonKind, body, io.Discard))
		})
	})
	return wanted
}

// fillUniques writes the cells of all counters that the windows touch, as visits that are spread evenly
// would, and returns how many these are and what they take in Redis.
func (r *rig) fillUniques(t *testing.T, perDay int) (cells int, bytes int64) {
	t.Helper()
	ctx := t.Context()
	tiers, err := window.ParseUniqueTiers(window.DefaultUniqueTiers)
	require.NoError(t, err)
	b := r.backfill(t, window.Layout{Tiers: tiersOf(window.DefaultTiers), UniqueTiers: tiers, Shards: shards})
	harmonic := 0.0
	for i := range uniqueCounters {
		harmonic += 1 / float64(i+1)
	}
	before := r.dataBytes(t)
	random, pipe := rand.New(rand.NewPCG(1, 2)), r.rdb.Pipeline()
	for i := range uniqueCounters {
		name := counterName(i)
		daily := float64(perDay) / harmonic / float64(i+1)
		for _, tier := range tiers {
			n := int(daily * float64(tier.Cell) / float64(day))
			last := b.now.UnixMilli() / tier.Cell.Milliseconds()
			for number := last - int64(tier.Window/tier.Cell); number <= last; number++ {
				key := fmt.Sprintf("%s:{%d}:u:%s:%d:%s", namespace, shardOf(name), human.FormatDuration(tier.Cell), number, name)
				addUniques(t, pipe, key, min(max(n, 1), densestCell), random)
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

// addUniques adds n unique values to a cell.
func addUniques(t *testing.T, c redis.Cmdable, key string, n int, random *rand.Rand) {
	t.Helper()
	args := make([]any, 0, min(n, 2000))
	for n > 0 {
		args = args[:0]
		for range min(n, cap(args)) {
			args = append(args, unique.Of(fmt.Append(nil, random.Uint64())).Argument())
		}
		require.NoError(t, c.PFAdd(t.Context(), key, args...).Err())
		n -= len(args)
	}
}

// visits is hits that name their visitors, uniformly from this many; 0: they name none. Figures are per
// hit.
type visits struct {
	sample
	workload
	visitors int
}

const (
	visitsPerSecond = 20_000
	visitsWarm      = 4  // seconds in which Redis makes its hashes
	visitsMeasured  = 10 // seconds
)

// measureUniqueHits counts the same hits with and without unique values, live and in turns: what is known to
// be in Redis is left out, so a backlog would show less.
func measureUniqueHits(t *testing.T, r *rig, o options) []*visits {
	var all []*visits
	for _, counters := range []int{1, 1_000} {
		for _, visitors := range []int{0, 1_000, 1_000_000} {
			name := fmt.Sprintf("%d counters, %d visitors", counters, visitors)
			w := workload{counters: counters, zipf: 1.1}
			all = append(all, &visits{sample{part: "unique hits", name: name}, w, visitors})
		}
	}
	all = chosen(o, all...)
	inTurns(t, o, all, func(t *testing.T, v *visits, _ int) { r.visit(t, o, v) })
	return all
}

func (r *rig) visit(t *testing.T, o options, v *visits) {
	r.empty(t)
	r.fill(t, "LIVE", v.workload, 1, 1)
	w := r.startIngest(t, "LIVE")
	draw, random := v.draw(), rand.New(rand.NewPCG(3, 4))
	hits := 1
	publish := func(n int) {
		pace := time.NewTicker(time.Second * batchSize / visitsPerSecond)
		defer pace.Stop()
		for end := hits + n; hits < end; hits += batchSize {
			<-pace.C
			var body []byte
			for range batchSize {
				body = fmt.Appendf(body, `{"key":%q`, counterName(draw()))
				if v.visitors > 0 {
					body = fmt.Appendf(body, `,"unique":"visitor-%d"`, random.IntN(v.visitors))
				}
				body = append(body, "}\n"...)
			}
			r.publish(t, "live.visits", body)
		}
		stack.Eventually(t, "all visits counted", func() (bool, string) {
			n, err := hitsCounted(w)
			return err == nil && n == hits, fmt.Sprint(n, " of ", hits, err)
		})
	}
	publish(o.size(visitsWarm*visitsPerSecond/batchSize) * batchSize)
	end := r.begin(t, r.redisCPU(t), w.PID())
	n := o.size(visitsMeasured*visitsPerSecond/batchSize) * batchSize
	publish(n)
	for figure, value := range end(n, observers...) {
		v.add(figure, value)
	}
	v.add("bytes", float64(r.stat(t, "total_net_input_bytes"))/float64(n))
}

// measureUniqueCells is what a unique cell takes in Redis.
func measureUniqueCells(t *testing.T, r *rig, o options) (bytes []int64) {
	if !o.wants("unique cells") {
		return nil
	}
	r.empty(t)
	random := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 10, 100, 1_000, 2_000, 1_000_000} {
		key := fmt.Sprintf("%s:{12}:u:5m:5887424:shop.checkout.eu:%d", namespace, n)
		addUniques(t, r.rdb, key, n, random)
		used, err := r.rdb.MemoryUsage(t.Context(), key, 0).Result()
		require.NoError(t, err)
		fmt.Printf("unique cells/%d different ones: %d bytes\n", n, used)
		bytes = append(bytes, used)
	}
	return bytes
}

// What is measured is answered and counts right, and shows what unique values add.
func checkUniques(t *testing.T, r *rig) {
	asked := measureUniques(t, r, options{runs: 1, scale: 1.0 / uniquesAsked, only: everything})
	if len(asked) != 3 || len(asked[0].took) != 1 || len(asked[2].took) != 10 {
		t.Fatalf("%+v", asked)
	}
	all := measureUniqueHits(t, r, options{runs: 1, scale: 1.0 / 50, only: everything})
	for i, v := range all {
		// With one counter, a commit has a few commands of its own for its one hash, and how many commits there are
		// depends on the machine.
		got, without := v.last("commands"), all[i/3*3].last("commands")
		if got <= 0 || v.counters > 1 && i%3 > 0 && got <= without {
			t.Errorf("%s: %v commands per hit, %v without unique values", v.path(), got, without)
		}
	}
	if bytes := measureUniqueCells(t, r, options{only: everything}); bytes[0] > 200 || bytes[len(bytes)-1] < 12<<10 {
		t.Errorf("cells take %v bytes", bytes)
	}
}
