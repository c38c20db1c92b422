package query

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// BenchmarkTotal asks a real Redis about counters with a hit in each minute of an hour.
func BenchmarkTotal(b *testing.B) {
	const counters = 1000
	redis, now := stack.Redis(b), asking.Now()
	keys := make([]string, counters)
	var hits []asking.Sample
	for i := range keys {
		keys[i] = fmt.Sprintf("counter-%d", i)
		for minute := range 60 {
			hits = append(hits, asking.Hits(keys[i], now.Add(-time.Duration(minute)*time.Minute), 1))
		}
	}
	asking.Seed(b, redis.Client(), now, hits...)
	h := onRedis(b, redis.URL(), now).handler()
	for _, n := range []int{1, 100, counters} {
		for _, windows := range [][]string{{"59m"}, {"1m", "5m", "10m", "20m", "30m", "59m", "12h", "20h"}} {
			body, err := json.Marshal(map[string]any{"keys": keys[:n], "windows": windows})
			require.NoError(b, err)
			b.Run(fmt.Sprintf("counters=%d/windows=%d", n, len(windows)), func(b *testing.B) {
				for b.Loop() {
					if resp := asking.Ask(h, http.MethodPost, "/v1/total", string(body)); resp.StatusCode != http.StatusOK {
						b.Fatal(resp.Status)
					}
				}
			})
		}
	}
}

// BenchmarkWithoutRedis is what a request costs beside its reads.
func BenchmarkWithoutRedis(b *testing.B) {
	s, _ := onFake(b)
	h := s.handler()
	var keys []string
	for i := range 100 {
		keys = append(keys, fmt.Sprintf("counter-%d", i))
	}
	many, err := json.Marshal(map[string]any{"keys": keys, "windows": []string{"1m", "1h", "12h", "20h"}})
	require.NoError(b, err)
	for _, c := range []struct{ name, method, target, body string }{
		{"total", http.MethodGet, "/v1/total?key=api-1&window=20h", ""},
		{"past", http.MethodGet, "/v1/total?key=api-1&window=20h&at=2026-11-21T09:00:00Z", ""},
		{"100x4", http.MethodPost, "/v1/total", string(many)},
		{"series", http.MethodGet, "/v1/series?key=api-1", ""},
		{"top", http.MethodGet, "/v1/top?window=1h", ""},
		{"healthz", http.MethodGet, "/healthz", ""},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if resp := asking.Ask(h, c.method, c.target, c.body); resp.StatusCode != http.StatusOK {
					b.Fatal(resp.Status)
				}
			}
		})
	}
}
