package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// BenchmarkSum asks about a busy counter in the window that ends now: total is sum_over_time, and cells is
// avg_over_time, for which the engine reads the cells. ns/op includes the way to Redis.
func BenchmarkSum(b *testing.B) {
	redis, now := stack.Redis(b), time.Now().Truncate(time.Second)
	var hits []counted
	for ago := time.Second; ago < 25*time.Hour; ago += time.Second {
		hits = append(hits, counted{"a", now.Add(-ago), 1})
	}
	seed(b, redis.Client(), now, hits...)
	s := newTestService(b, redis, func(*Settings) {})
	b.Cleanup(func() { _ = s.engine.Close() })
	h := s.handler()
	for _, window := range []string{"1h", "6h", "24h"} {
		for name, expr := range map[string]string{
			"total": fmt.Sprintf(`sum_over_time(tallyroll_hits{key="a"}[%s])`, window),
			"cells": fmt.Sprintf(`avg_over_time(tallyroll_hits{key="a"}[%s])`, window),
		} {
			b.Run(name+"/"+window, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1/api/v1/query?query="+url.QueryEscape(expr), nil)
					w := httptest.NewRecorder()
					h.ServeHTTP(w, r)
					require.Equal(b, http.StatusOK, w.Code)
				}
			})
		}
	}
}
