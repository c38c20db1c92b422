package stack

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Checks are pollEvery apart, which is short compared with anything that tests wait for (a flush interval is
// 250 ms). After a check that takes long, such as a question about hundreds of counters, comes a pause of
// restFor times that, up to restMost: a test that waits must not take the processor from what it waits for.
const (
	pollEvery = 10 * time.Millisecond
	restFor   = 3
	restMost  = 150 * time.Millisecond
)

// Hung is the one bound of every wait in the tests. No result depends on it: a
// test that waits for so long hangs, however slow the machine is. A package's own
// tests start few servers, so they hang sooner than those below tests.
var Hung = func() time.Duration {
	if dir, err := os.Getwd(); err == nil && strings.Contains(dir, "/tests/") { // go test runs in the package's folder
		return 5 * time.Minute
	}
	return time.Minute
}()

// Eventually waits until cond is true, checking it repeatedly. After [Hung] it fails
// the test with the state that cond saw last. what completes "waiting for …".
func Eventually(t testing.TB, what string, cond func() (ok bool, state string)) {
	t.Helper()
	eventually(t, Hung, what, cond)
}

func eventually(t testing.TB, timeout time.Duration, what string, cond func() (bool, string)) {
	t.Helper()
	require.NoErrorf(t, poll(timeout, nil, cond), "waiting for %s", what)
}

// poll asks cond until it is true, the the time is up or done is closed. It asks
// once more then, so that what happened just before is not missed.
func poll(timeout time.Duration, done <-chan struct{}, cond func() (bool, string)) error {
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	for {
		began := time.Now()
		if ok, _ := cond(); ok {
			return nil
		}
		select {
		case <-time.After(min(max(pollEvery, restFor*time.Since(began)), restMost)):
			continue
		case <-deadline.C:
			ok, state := cond()
			if ok {
				return nil
			}
			return fmt.Errorf("hung: not after %v; last state: %s", timeout, state)
		case <-done:
			ok, state := cond()
			if ok {
				return nil
			}
			return fmt.Errorf("the process ended; last state: %s", state)
		}
	}
}
