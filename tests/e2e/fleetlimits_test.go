package e2e_test

import (
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"tallyroll/tests/stack"
)

// 64 clients ask 4 processes, each of which has a share: never more than max are allowed.
// And they take slots, which holders and a process leave without a word: never more than max hold one.
func TestAFleetKeepsToItsBound(t *testing.T) {
	t.Parallel()
	const processes, clients, most, share, slots = 4, 64, 1000, 50, 5
	redis := stack.Redis(t)
	setting := limitsFile(t, `limits:
- {name: shared, window: 1h, max: 1000, fail: closed, share: {hits: 50, for: 1s}}
- {name: exports, policy: concurrent, window: 1h, max: 5, fail: closed}
`)
	var fleet []*stack.Service
	for range processes {
		q := stack.Query(t, redis, setting, stack.NoWait)
		q.WaitForLog(`"message":"started"`)
		fleet = append(fleet, q)
	}
	var allowed, shared, held atomic.Int64
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			take := func(limit string) (string, bool) {
				body := `{"limit":"` + limit + `","key":"k"}`
				status, text := request(http.DefaultClient, http.MethodPost, fleet[i%processes].URL()+"/v1/take", body, "Content-Type", "application/json")
				return text, status == http.StatusOK
			}
			for range 2 * most / clients {
				text, ok := take("shared")
				if ok {
					allowed.Add(1)
				}
				if hasAll(text, []string{`"source":"share"`}) {
					shared.Add(1)
				}
			}
			if _, ok := take("exports"); ok {
				held.Add(1) // and its holder dies
			}
		})
	}
	wg.Wait()
	if n := allowed.Load(); n > most || n < most-processes*share || shared.Load() == 0 {
		t.Errorf("%d were allowed of %d, %d by shares", n, most, shared.Load())
	}
	if held.Load() != slots {
		t.Errorf("%d hold a slot of %d", held.Load(), slots)
	}
	fleet[0].Kill()
	if status, d := decide(t, http.MethodPost, fleet[1].URL()+"/v1/take", map[string]any{"limit": "exports", "key": "k"}); status != http.StatusTooManyRequests {
		t.Errorf("after a process was killed: %d %+v", status, d)
	}
}
