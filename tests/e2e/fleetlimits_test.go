package e2e_test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
		q := stack.Query(t, redis, setting, stack.NoWait)
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

// A holder is killed: its place is free when its lease has run out since the last renewal, and not before.
func TestAPlaceOutlivesItsHolder(t *testing.T) {
	t.Parallel()
	const lease = 3 * time.Second
	_, setting := limitsFile(t, "limits:\n- {name: exports, policy: concurrent, window: 3s, max: 1, fail: closed}\n")
	q := stack.Query(t, stack.Redis(t), setting, stack.NoWait)
	q.WaitForLog(`"message":"started"`)
	file := filepath.Join(t.TempDir(), "renewed")
	// The holder takes the place, and renews it ten times in a lease.
	holder := exec.Command("sh", "-c", `
		body='{"limit":"exports","key":"k","lease":"holder"}'
		curl -sSf -o /dev/null -d "$body" "$Q/v1/take" || exit 1
		while curl -sSf -o /dev/null -d "$body" "$Q/v1/renew"; do echo >> "$RENEWED"; sleep 0.3; done`)
	holder.Env = append(os.Environ(), "Q="+q.URL(), "RENEWED="+file)
	holder.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, holder.Start())
	kill := func() { _ = syscall.Kill(-holder.Process.Pid, syscall.SIGKILL) }
	t.Cleanup(kill)
	take := func() (int, decision) {
		return decide(t, http.MethodPost, q.URL()+"/v1/take", map[string]any{"limit": "exports", "key": "k", "lease": "next"})
	}
	renewed := func() int {
		lines, _ := os.ReadFile(file)
		return len(lines)
	}
	began := time.Now()
	stack.Eventually(t, "the place to be held for longer than a lease", func() (bool, string) {
		return renewed() > 0 && time.Since(began) > lease+lease/2, ""
	})
	if status, d := take(); status != http.StatusTooManyRequests {
		t.Fatalf("the place is held, and is given out: %d %+v", status, d)
	}
	seen, least := time.Now(), renewed()
	stack.Eventually(t, "two more renewals", func() (bool, string) { return renewed() >= least+2, "" }) // the second is later than seen
	kill()
	_ = holder.Wait()
	if status, d := take(); status == http.StatusTooManyRequests && (d.RetryAfter <= 0 || d.RetryAfter > lease.Seconds()) {
		t.Errorf("just after the holder was killed: %+v", d)
	}
	stack.Eventually(t, "the place to be free", func() (bool, string) {
		status, d := take()
		return status == http.StatusOK, fmt.Sprintf("%+v", d)
	})
	if held := time.Since(seen); held < lease {
		t.Errorf("the place was free %v before the lease had run out since it was last renewed", lease-held)
	}
	if status, _ := decide(t, http.MethodPost, q.URL()+"/v1/renew", map[string]any{"limit": "exports", "key": "k", "lease": "holder"}); status != http.StatusConflict {
		t.Errorf("the dead one's lease is renewed: %d", status)
	}
}
