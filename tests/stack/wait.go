package stack

import (
	"fmt"
	"testing"
	"time"
)

// pollEvery is short beside anything that tests wait for (a flush interval is
// 250 ms) and long beside one check (a request on loopback).
const pollEvery = 10 * time.Millisecond

// Eventually waits until cond is true, asking every 10 ms, and fails the test
// after timeout with the state that cond saw last. what completes "waiting for …".
func Eventually(t testing.TB, timeout time.Duration, what string, cond func() (ok bool, state string)) {
	t.Helper()
	if err := poll(timeout, nil, cond); err != nil {
		t.Fatalf("waiting for %s: %v", what, err)
	}
}

// poll asks cond until it is true, the time is up or done is closed. It asks
// once more then, so that what happened just before is not missed.
func poll(timeout time.Duration, done <-chan struct{}, cond func() (bool, string)) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	for {
		if ok, _ := cond(); ok {
			return nil
		}
		select {
		case <-tick.C:
			continue
		case <-deadline.C:
			ok, state := cond()
			if ok {
				return nil
			}
			return fmt.Errorf("not after %v; last state: %s", timeout, state)
		case <-done:
			ok, state := cond()
			if ok {
				return nil
			}
			return fmt.Errorf("the process ended; last state: %s", state)
		}
	}
}
