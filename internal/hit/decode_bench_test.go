package hit_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/hit"
	"tallyroll/internal/window"
)

// BenchmarkDecode decodes as a worker does, with the default tiers.
func BenchmarkDecode(b *testing.B) {
	const stored = int64(1763683200000)
	tiers, err := window.ParseTiers(window.DefaultTiers)
	require.NoError(b, err)
	layout := window.Layout{Tiers: tiers, Shards: 4}
	place := func(counter []byte, at, stored int64) (uint64, string) {
		hash := window.HashCounter(counter)
		if layout.Holds(hash, at, stored) {
			return hash, ""
		}
		return hash, "too late"
	}
	object := func(i int) string {
		return fmt.Sprintf(`{"key":"/shop/item/%d","n":1,"ts":%d}`, i, stored-int64(i))
	}
	var objects []string
	for i := range 100 {
		objects = append(objects, object(i))
	}
	for _, bench := range []struct {
		name, body string
		hits       int
	}{
		{"empty", "", 1},
		{"object", object(1), 1},
		{"lines100", strings.Join(objects, "\n"), 100},
		{"array100", "[" + strings.Join(objects, ",") + "]", 100},
	} {
		b.Run(bench.name, func(b *testing.B) {
			d := hit.NewDecoder(hit.Limits{MaxAhead: 10 * time.Second, MaxHits: 10_000, Place: place})
			body := []byte(bench.body)
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			var hits []hit.Hit
			var rejects []hit.Reject
			for b.Loop() {
				hits, rejects = d.Decode("shop.checkout", stored, body)
			}
			if len(hits) != bench.hits {
				b.Fatalf("%d hits, rejects %+v", len(hits), rejects)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*bench.hits), "ns/hit")
		})
	}
}
