package cells

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A ring has the hits of the window between its bounds, whatever the window, the steps and the give-backs.
func TestRingBoundsTheHitsOfTheWindow(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		type hits struct{ at, n int64 }
		var r Ring
		var all []hits
		window := rapid.Int64Range(1000, 100_000).Draw(t, "window")
		now := int64(1_763_788_800_000)
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			now += rapid.SampledFrom([]int64{0, 1, window / PerWindow, window / 2, window - 1, window, 3 * window}).Draw(t, "ms")
			at, length := time.UnixMilli(now), time.Duration(window)*time.Millisecond
			n := rapid.Int64Range(1, 9).Draw(t, "n")
			r.Adjust(at, length, n)
			all = append(all, hits{now, n})
			if rapid.Bool().Draw(t, "give back") {
				r.Adjust(at, length, -n)
				all = all[:len(all)-1]
			}
			truth := int64(0)
			for _, h := range all {
				if h.at > now-window {
					truth += h.n
				}
			}
			if v := r.At(at, length); truth < v.Lower() || truth > v.Sum || v.Estimate() < v.Lower() || v.Estimate() > v.Sum {
				t.Fatalf("%d hits, and not %d to %d, estimated as %d", truth, v.Lower(), v.Sum, v.Estimate())
			}
		}
	})
}
