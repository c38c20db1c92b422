package main

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/hit"
)

func sleepUntil(t time.Time) error {
	time.Sleep(time.Until(t))
	return nil
}

func TestSyntheticRate(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name string
		load synthetic
		hits int
		took time.Duration
	}{
		{"rate and duration", synthetic{counters: 10, rate: 1000, duration: 3 * time.Second}, 3000, 3 * time.Second},
		{"slow rate", synthetic{counters: 10, rate: 0.5, duration: 10 * time.Second}, 5, 10 * time.Second},
		{"count first", synthetic{counters: 10, rate: 1000, duration: time.Minute, count: 500}, 500, 500 * time.Millisecond},
		{"count as fast as possible", synthetic{counters: 10, count: 1001}, 1001, 0},
		{"Zipf", synthetic{counters: 10, zipf: 1.1, count: 1000}, 1000, 0},
		{"one counter by Zipf", synthetic{counters: 1, zipf: 2, count: 10}, 10, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				seen := map[string]int{}
				hits := 0
				err := c.load.run(func(h hit.Hit) error {
					hits++
					seen[string(h.Counter)]++
					if h.At != hit.NoTime || h.N != 1 {
						t.Fatalf("%+v", h)
					}
					return nil
				}, sleepUntil)
				if err != nil || hits != c.hits {
					t.Fatalf("%d hits, want %d: %v", hits, c.hits, err)
				}
				if took := time.Since(start); took != c.took {
					t.Errorf("took %v, want %v", took, c.took)
				}
				for key := range seen {
					n, err := strconv.ParseInt(key[len("api-"):], 10, 64)
					if err != nil || n < 1 || n > c.load.counters {
						t.Errorf("counter %q", key)
					}
				}
			})
		})
	}
}

func TestPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &pacer{speed: 10, wait: sleepUntil}
		start := time.Now()
		for _, step := range []struct {
			ts   int64
			want time.Duration
		}{{50_000, 0}, {51_000, 100 * time.Millisecond}, {hit.NoTime, 100 * time.Millisecond}, {40_000, 100 * time.Millisecond}, {60_000, time.Second}} {
			require.NoError(t, p.pace(hit.Hit{At: step.ts}))
			require.EqualValues(t, step.want, time.Since(start), step.ts)
		}
	})
}
