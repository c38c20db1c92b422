package window_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"tallyroll/internal/platform/human"
	"tallyroll/internal/window"
)

var benchLayout = window.Layout{
	Tiers:       must(window.ParseTiers(window.DefaultTiers)),
	UniqueTiers: must(window.ParseUniqueTiers(window.DefaultUniqueTiers)),
	Shards:      4,
}

// must is for values that no test changes.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// BenchmarkBatchAdd coalesces hits; ns/op is per hit. A batch is emptied after
// as many hits as a worker reads in one flush interval of 250 ms at full speed.
func BenchmarkBatchAdd(b *testing.B) {
	const flush = 50_000
	now := time.Date(2025, 11, 21, 0, 0, 0, 0, time.UTC).UnixMilli()
	for _, counters := range []int{1, 1000, 100_000} {
		b.Run(fmt.Sprintf("counters=%d", counters), func(b *testing.B) {
			// Zipf-distributed with exponent 1.1, as those of a web site's pages are.
			draw := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 1, uint64(counters-1))
			hits, hashes := make([][]byte, flush), make([]uint64, flush)
			for i := range hits {
				hits[i] = fmt.Appendf(nil, "api-%d", draw.Uint64())
				hashes[i] = window.HashCounter(hits[i])
			}
			batch := window.NewBatch(benchLayout)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if i == flush {
					batch.Reset()
					i = 0
				}
				at := now + int64(i/200) // the 250 ms that these hits came in
				batch.Add(hits[i], hashes[i], at, at, 1)
			}
		})
	}
}

func BenchmarkPlan(b *testing.B) {
	now := time.Date(2025, 11, 21, 10, 7, 23, 0, time.UTC).UnixMilli()
	for _, tiers := range []string{window.DefaultTiers, "1s/1h,1m/1d,1h/92d"} {
		layout := window.Layout{Tiers: must(window.ParseTiers(tiers)), Shards: benchLayout.Shards}
		for _, w := range []time.Duration{time.Minute, time.Hour, 24 * time.Hour, 30 * 24 * time.Hour} {
			b.Run("tiers="+tiers+"/window="+human.FormatDuration(w), func(b *testing.B) {
				r := window.Range{From: now - w.Milliseconds(), To: now}
				b.ReportAllocs()
				for b.Loop() {
					if _, err := layout.Plan("api-1", r, now); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
