package e2e_test

import (
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"tallyroll/tests/stack"
)

// 64 clients ask 4 processes, each of which has a share: no more than max and the stated bound are allowed. And they take
// places, which holders and a process leave without a word: never more than max hold one.
func TestAFleetKeepsToItsBound(t *testing.T) {
	t.Parallel()
	const processes, clients, most, share, places = 4, 64, 2000, 50, 5
	redis := stack.Redis(t)
	_, setting := limitsFile(t, "limits:\n- {name: shared, window: 1h, max: 2000, fail: closed, share: {hits: 50, for: 1s}}\n- {name: exports, policy: concurrent, window: 1h, max: 5, fail: closed}\n")
	var fleet []*stack.Service
	for range processes {
		q := stack.Query(t, redis, setting, patient, stack.NoWait)
		q.WaitForLog(`"message":"started"`)
		fleet = append(fleet, q)
	}
	var allowed, shared, held atomic.Int64
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			url := fleet[i%processes].URL() + "/v1/take"
			for range 2 * most / clients {
				status, d := decide(t, http.MethodPost, url, map[string]any{"limit": "shared", "key": "k"})
				if status == http.StatusOK {
					allowed.Add(1)
				}
				if d.Source == "share" {
					shared.Add(1)
				}
			}
			if status, _ := decide(t, http.MethodPost, url, map[string]any{"limit": "exports", "key": "k"}); status == http.StatusOK {
				held.Add(1) // and its holder dies
			}
		})
	}
	wg.Wait()
	t.Logf("%d were allowed of %d, %d by shares; %d places of %d", allowed.Load(), most, shared.Load(), held.Load(), places)
	if n := allowed.Load(); n > most+processes*share || n < most-processes*share || shared.Load() == 0 {
		t.Errorf("%d were allowed of %d, with a bound of %d", n, most, processes*share)
	}
	if held.Load() != places {
		t.Errorf("%d hold a place of %d", held.Load(), places)
	}
	fleet[0].Kill()
	if status, d := decide(t, http.MethodPost, fleet[1].URL()+"/v1/take", map[string]any{"limit": "exports", "key": "k"}); status != http.StatusTooManyRequests {
		t.Errorf("after a process was killed: %d %+v", status, d)
	}
}
