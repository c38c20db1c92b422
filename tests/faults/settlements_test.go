package faults_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// TestSettlementsThroughKills takes and settles from many clients while query and Redis are killed with
// SIGKILL. Each request is repeated with its id until it has an answer. In the end each key has exactly the
// hits that were settled.
func TestSettlementsThroughKills(t *testing.T) {
	t.Parallel()
	const keys, clients = 8, 32
	settlements, kills := int64(rounds(1500, 3000, 10_000)), rounds(2, 4, 10)
	file := filepath.Join(t.TempDir(), "limits.yml")
	require.NoError(t, os.WriteFile(file, []byte(`limits:
  - {name: tokens, window: 1d, max: 100000000, fail: closed}
  - {name: requests, window: 1d, max: 100000, policy: log, fail: closed}
`), 0o600))
	redis := stack.Redis(t, stack.RedisArgs("--appendfsync", "always"))
	query := stack.Query(t, redis, "QUERY_LIMITS_FILE="+file)
	var done, repeated atomic.Int64
	var tokens, requests [keys]atomic.Int64
	// ask repeats a request until it has an answer other than 503.
	ask := func(path string, body map[string]any) {
		for {
			status, answer, err := stack.Do(http.MethodPost, query.URL()+path, body)
			switch {
			case err != nil || status == http.StatusServiceUnavailable || status == http.StatusBadGateway:
				repeated.Add(1)
			case status != http.StatusOK:
				t.Errorf("%s %v: %d %s", path, body, status, answer)
				return
			default:
				return
			}
		}
	}
	var working sync.WaitGroup
	for client := range clients {
		working.Go(func() {
			for i := 0; done.Load() < settlements; i++ {
				k, id := (client+i)%keys, fmt.Sprint(client, "-", i)
				both := func(n, m int) []map[string]any {
					key := fmt.Sprint("key-", k)
					return []map[string]any{{"limit": "tokens", "key": key, "n": n}, {"limit": "requests", "key": key, "n": m}}
				}
				ask("/v1/take", map[string]any{"take": both(4000, 1), "id": id, "ttl": "1h"})
				used, made := i*37%6000, i%4 // more than taken, and nothing, among them
				ask("/v1/settle", map[string]any{"settle": both(used, made), "id": id})
				tokens[k].Add(int64(used))
				requests[k].Add(int64(made))
				done.Add(1)
			}
		})
	}
	for i := range kills {
		until := settlements * int64(i+1) / int64(kills+2)
		stack.Eventually(t, "settlements", func() (bool, string) { return done.Load() >= until, fmt.Sprint(done.Load()) })
		query.Kill()
		if i%2 == 1 {
			redis.Kill()
			redis.Start()
		}
		query.Start()
	}
	working.Wait()
	for k := range keys {
		for name, want := range map[string]int64{"tokens": 100_000_000 - tokens[k].Load(), "requests": 100_000 - requests[k].Load()} {
			status, answer, err := stack.Do(http.MethodGet, fmt.Sprintf("%s/v1/limit?limit=%s&key=key-%d", query.URL(), name, k), nil)
			require.NoError(t, err)
			require.Equal(t, http.StatusOK, status, "%s", answer)
			var got struct{ Remaining int64 }
			require.NoError(t, json.Unmarshal(answer, &got))
			require.Equal(t, want, got.Remaining, "%s of key-%d", name, k)
		}
	}
	t.Logf("%d settlements, %d kills, %d requests repeated", done.Load(), kills, repeated.Load())
	if repeated.Load() == 0 {
		t.Error("no request was repeated")
	}
}
