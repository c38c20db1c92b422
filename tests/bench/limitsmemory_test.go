package bench_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// occupied is how many bytes of Redis a key of a limiter takes that is full, by its max.
type occupied struct {
	limiter string
	bytes   []float64 // of limitSizes
}

var limitSizes = []int64{100, 10_000}

// occupy fills keys to their max, evenly over a window, and asks Redis how many bytes each takes. All limiters
// fill theirs at the same time.
func (r *rig) occupy(t *testing.T, all []limiter) []occupied {
	const window = 20 * time.Second
	out := make([]occupied, len(all))
	for _, most := range limitSizes {
		if len(all) == 0 {
			break
		}
		subtest(t, fmt.Sprintf("limits/memory/max=%d", most), func(t *testing.T) {
			r.empty(t)
			began := time.Now()
			keys := max(2, 10_000/most)
			var clients sync.WaitGroup
			for _, l := range all {
				clients.Go(func() {
					for hit := range most {
						// The last one comes before the first one leaves.
						time.Sleep(time.Until(began.Add(window * 8 / 10 * time.Duration(hit) / time.Duration(most))))
						for k := range keys {
							err := l.fill(t.Context(), fmt.Sprintf("m-%03d", k), window, most)
							if err != nil {
								t.Errorf("%s, hit %d: %v", l.name, hit, err)
								return
							}
						}
					}
				})
			}
			clients.Wait()
			if took := time.Since(began); took > window {
				t.Fatalf("the keys took %v to fill: the first hits have left", took)
			}
			for i, l := range all {
				out[i].limiter = l.name
				out[i].bytes = append(out[i].bytes, r.bytesOf(t, l.keys, keys))
				fmt.Printf("limits/memory/%s, max=%d: %.0f bytes a key\n", l.name, most, out[i].bytes[len(out[i].bytes)-1])
			}
		})
	}
	return out
}

func (l limiter) fill(ctx context.Context, key string, window time.Duration, most int64) error {
	if l.put != nil {
		return l.put(ctx, key, window)
	}
	allowed, err := l.take(ctx, key, window, most)
	if err == nil && !allowed {
		err = errDecision
	}
	return err
}

// bytesOf is the mean size of keys, of which there must be so many.
func (r *rig) bytesOf(t *testing.T, pattern string, keys int64) float64 {
	t.Helper()
	found := stack.Scan(t, r.rdb, pattern)
	if int64(len(found)) != keys {
		t.Fatalf("%d keys %s, not %d", len(found), pattern, keys)
	}
	sum := int64(0)
	for _, key := range found {
		n, err := r.rdb.MemoryUsage(t.Context(), key, 0).Result()
		require.NoError(t, err)
		sum += n
	}
	return float64(sum) / float64(keys)
}
