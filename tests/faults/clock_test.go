package faults_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// A worker whose wall clock is an hour off counts the same. The worker is built
// with a changed time.Now: Go does not ask the C library for the time, so
// libfaketime cannot move its clock.
func TestCountsAreExactIfTheWorkersClockIsWrong(t *testing.T) {
	if !full() {
		t.Skip("builds the worker and the standard library anew, so with FAULTS=full only")
	}
	t.Setenv("TALLYROLL_BIN", wrongClock(t))
	for name, offset := range map[string]time.Duration{"ahead": time.Hour, "behind": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			s := start(t, clockOffset(offset))
			l := startLoad(s, "c", false, 1000)
			s.awaitProgress(l)
			if !strings.Contains(s.workers[0].Logs(), time.Now().UTC().Add(offset).Format("2006-01-02T15")) {
				t.Fatalf("its clock is right:\n%s", s.workers[0].Logs())
			}
			s.workers[0].Kill()
			s.workers[0].Start()
			s.flushAll()
			s.requireExactCounts(l, 2)
		})
	}
}

// The wall clock of query is off, by seconds and by minutes: its answers are those
// of one whose clock is right, and it warns. TestStore in internal/window/read has Redis's clock, too.
func TestAnswersHoldIfTheClockOfQueryIsWrong(t *testing.T) {
	if !full() {
		t.Skip("builds query and the standard library anew, so with FAULTS=full only")
	}
	s := start(t)
	l := startLoad(s, "c", false, 1000)
	s.awaitProgress(l)
	s.requireExactCounts(l, 2)
	right := stack.Query(t, s.redis)
	t.Setenv("TALLYROLL_BIN", wrongClock(t))
	for _, offset := range []time.Duration{-20 * time.Second, -4 * time.Minute, 40 * time.Second, time.Hour} {
		t.Run(offset.String(), func(t *testing.T) {
			wrong := stack.Query(t, s.redis, clockOffset(offset))
			for _, window := range []string{"1h", "24h"} { // longer than the test, so what now is makes no difference to them
				ask := url.Values{"key": {"c0", "c1", "never"}, "window": {window}}
				want, err := stack.FetchTotals(right.URL(), ask)
				require.NoError(t, err)
				got, err := stack.FetchTotals(wrong.URL(), ask)
				require.NoError(t, err)
				for i, w := range want.Totals {
					if g := got.Totals[i]; g.Total != w.Total || g.Lower != w.Lower || g.Upper != w.Upper {
						t.Errorf("%+v, and with a right clock %+v", g, w)
					}
				}
			}
			stack.Eventually(t, "a warning", func() (bool, string) {
				return strings.Contains(wrong.Logs(), "the clocks of Redis and of this machine differ"), wrong.Logs()
			})
		})
	}
}

// Every clock is another one: each answer has, of the hits that were stored within its
// window, all that as_of claims, and no more than there are. Windows are short, so that
// epochs change and hashes expire meanwhile.
func TestAnswersHoldIfAllClocksDiffer(t *testing.T) {
	if !full() {
		t.Skip("builds the programs and the standard library anew, so with FAULTS=full only")
	}
	programs := wrongClock(t)
	for _, skew := range []struct{ redis, worker, query time.Duration }{
		{3 * time.Second, -time.Hour, -20 * time.Second}, // with five, as_of would be too old for any upper bound
		{-5 * time.Second, time.Hour, 4 * time.Minute},
	} {
		t.Run(fmt.Sprintf("redis %s worker %s query %s", skew.redis, skew.worker, skew.query), func(t *testing.T) {
			redis := stack.Redis(t, stack.RedisClockAhead(t, skew.redis))
			if now, err := redis.Client().Time(t.Context()).Result(); err != nil || (time.Until(now)-skew.redis).Abs() > 2*time.Second {
				t.Fatalf("the clock of Redis is at %s, want %s from now: %v", now, skew.redis, err)
			}
			s := &system{t: t, redis: redis, nats: stack.NATSProcess(t)}
			s.broker, s.replicas, s.js = s.nats, 1, s.nats.JetStream()
			s.createStream("HITS", "hits.>")
			t.Setenv("TALLYROLL_BIN", programs)
			s.startWorker(redis, clockOffset(skew.worker), "TIERS=1s/10s,1m/1h")
			s.query = stack.Query(t, redis, clockOffset(skew.query))
			l := newSpreadLoad(s, "c", true, 3, 0).start(100)
			w := s.watchBy(func() (stack.Answer, error) {
				return stack.FetchTotals(s.query.URL(), url.Values{"key": l.names(), "window": {"5s", "10s", "1h"}})
			})
			const epochs = 45 * time.Second // two windows of the finest tier each: two changes at least
			time.Sleep(epochs)
			l.finish()
			w.requireHonest("HITS")
		})
	}
}

// clockOffset is the environment that moves the clock of a program of wrongClock.
func clockOffset(by time.Duration) string { return fmt.Sprintf("CLOCK_OFFSET=%.0f", by.Seconds()) }

// wrongClock builds the programs with a clock that CLOCK_OFFSET moves, in seconds.
func wrongClock(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	require.NoError(t, err)
	source := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	text, err := os.ReadFile(source)
	require.NoError(t, err)
	const reads = "sec, nsec, mono := runtimeNow()\n" // of time.Now
	changed := strings.Replace(string(text), reads, reads+"\tsec += clockOffset\n", 1)
	changed = strings.Replace(changed, "import (", "import (\n\t\"syscall\"", 1) + `
var clockOffset = func() (seconds int64) {
	v, _ := syscall.Getenv("CLOCK_OFFSET")
	sign := int64(1)
	for i, c := range []byte(v) { // strconv would need this package
		if i == 0 && c == '-' {
			sign = -1
			continue
		}
		seconds = 10*seconds + int64(c-'0')
	}
	return sign * seconds
}()
`
	require.Contains(t, changed, "sec += clockOffset")
	copied, overlay := filepath.Join(dir, "time.go"), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {source: copied}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(copied, []byte(changed), 0o600))
	require.NoError(t, os.WriteFile(overlay, replace, 0o600))
	for _, name := range []string{"ingest", "query", "audit"} {
		out, err := exec.Command("go", "build", "-overlay", overlay, "-o", filepath.Join(dir, name), "tallyroll/cmd/"+name).CombinedOutput()
		if err != nil {
			t.Fatalf("build %s: %v\n%s", name, err, out)
		}
	}
	return dir
}
