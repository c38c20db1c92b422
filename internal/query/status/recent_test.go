package status

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// timeout bounds a check.
const timeout = 2 * time.Second

// Callers that ask together cause one check per second, also if it fails, and none waits for longer than that
// check.
func TestManyWhoAskTogetherCauseOneReadPerSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recent[int]
		var looks atomic.Int32
		find := func(ctx context.Context) (int, error) {
			n := int(looks.Add(1))
			if n == 2 { // it hangs
				<-ctx.Done()
				return 0, ctx.Err()
			}
			time.Sleep(100 * time.Millisecond)
			return n, nil
		}
		askers := func(want int, within time.Duration) (failed int) {
			t.Helper()
			var wg sync.WaitGroup
			var failures atomic.Int32
			began := time.Now()
			for range 50 {
				wg.Go(func() {
					got, err := r.get(t.Context(), timeout, find)
					if err != nil {
						failures.Add(1)
					} else if got != want {
						t.Errorf("got %d, want %d", got, want)
					}
				})
			}
			wg.Wait()
			if took := time.Since(began); took > within {
				t.Errorf("they waited for %v, want at most %v", took, within)
			}
			return int(failures.Load())
		}
		require.Zero(t, askers(1, 100*time.Millisecond))
		time.Sleep(recentFor / 2)
		askers(1, 0)
		time.Sleep(recentFor)
		require.Equal(t, 50, askers(0, timeout), "while it hung")
		require.Equal(t, 50, askers(0, 0), "just afterwards")
		time.Sleep(recentFor)
		require.Zero(t, askers(3, 100*time.Millisecond))
		require.EqualValues(t, 3, looks.Load())
	})
}

// A caller that leaves does not wait, and does not spoil the check for the others.
func TestReadGoesOnWithoutTheClientThatCausedIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r recent[int]
		find := func(ctx context.Context) (int, error) {
			select {
			case <-ctx.Done():
				return 0, ctx.Err()
			case <-time.After(time.Second):
				return 7, nil
			}
		}
		leaving, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = r.get(leaving, timeout, find) })
		synctest.Wait()
		second, leaveToo := context.WithCancel(t.Context())
		wg.Go(func() {
			if _, err := r.get(second, timeout, find); !errors.Is(err, context.Canceled) {
				t.Errorf("the second one got %v", err)
			}
		})
		wg.Go(func() {
			if got, err := r.get(t.Context(), timeout, find); got != 7 || err != nil {
				t.Errorf("the third one got %d, %v", got, err)
			}
		})
		synctest.Wait()
		leave()
		leaveToo()
		wg.Wait()
	})
}

// A caller that makes the attempt waits no longer than its own deadline, such as that of a scrape.
func TestAttemptEndsAtTheDeadlineOfItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recent[int]
		ctx, cancel := context.WithTimeout(t.Context(), timeout/2)
		defer cancel()
		began := time.Now()
		_, err := r.get(ctx, timeout, func(ctx context.Context) (int, error) { <-ctx.Done(); return 0, ctx.Err() })
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, timeout/2, time.Since(began))
	})
}
