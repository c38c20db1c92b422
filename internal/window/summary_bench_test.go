package window

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// addToText is what a commit does with the summary of a segment.
func addToText(b *testing.B, size int, text string, batch []listing) string {
	s, err := parseSummary(text)
	if err == nil {
		err = s.merge(batch, size)
	}
	require.NoError(b, err)
	return s.encode()
}

// BenchmarkSummaryMerge merges batches into a full summary; ns/op is per batch and
// segment. See docs/design.md.
func BenchmarkSummaryMerge(b *testing.B) {
	for _, load := range []string{"zipf", "uniform"} {
		for _, size := range []int{16, 63} {
			for _, batch := range []int{1, 10, 100, 2000} {
				b.Run(fmt.Sprintf("%s/listed=%d/batch=%d", load, size, batch), func(b *testing.B) {
					r := rand.New(rand.NewPCG(1, 2))
					z := rand.NewZipf(r, 1.1, 1, 99_999)
					draw := z.Uint64
					if load == "uniform" {
						draw = func() uint64 { return r.Uint64N(100_000) }
					}
					var batches [16][]listing
					for i := range batches {
						seen := map[string]int64{}
						for len(seen) < batch {
							seen[fmt.Sprintf("counter-%d", draw())]++
						}
						for name, n := range seen {
							batches[i] = append(batches[i], listing{name, n})
						}
					}
					text := (&summary{}).encode()
					for i := range batches {
						text = addToText(b, size, text, batches[i])
					}
					b.ReportAllocs()
					for i := 0; b.Loop(); i++ {
						addToText(b, size, text, batches[i%len(batches)])
					}
				})
			}
		}
	}
}
