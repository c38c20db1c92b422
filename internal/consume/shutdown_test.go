package consume

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
)

func TestTheStepsOfAStopFitIntoItsTime(t *testing.T) {
	t.Parallel()
	const promised = 10 * time.Second
	if sum := shutdownCommit + releaseWithin + leaveWithin; sum >= stopWithin || stopWithin >= promised {
		t.Errorf("the steps take %s, all of it %s, and %s are promised", sum, stopWithin, promised)
	}
}

func TestAwaitEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		failed := errors.New("failed")
		ended := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Hour, func() { ended <- failed })
		if err, late := awaitEnd(ctx, ended); err != failed || late {
			t.Errorf("a worker that ends by itself: %v, late %v", err, late)
		}
		time.AfterFunc(time.Hour, cancel)
		time.AfterFunc(time.Hour+stopWithin-time.Millisecond, func() { ended <- nil })
		if err, late := awaitEnd(ctx, ended); err != nil || late {
			t.Errorf("one that stops in time: %v, late %v", err, late)
		}
		began := time.Now()
		if err, late := awaitEnd(ctx, ended); err != nil || !late || time.Since(began) != stopWithin {
			t.Errorf("one that hangs: %v, late %v, after %s", err, late, time.Since(began))
		}
	})
}

// A session whose Redis takes everything and answers nothing ends in its time,
// whatever was under way.
func TestASessionStopsWhileRedisHangs(t *testing.T) {
	t.Parallel()
	for _, since := range []time.Duration{0, 10 * time.Millisecond, time.Second, 4900 * time.Millisecond, 5100 * time.Millisecond, 20 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			w := newSimWorld(simPlan{tiers: "1s/4s", shards: 2, maxCommands: 20, flush: 50 * time.Millisecond, workers: 1}, zerolog.Nop())
			w.publish(0)
			time.Sleep(3 * time.Second)
			w.redis.mu.Lock()
			w.redis.latency = time.Hour
			w.redis.mu.Unlock()
			w.publish(0)
			time.Sleep(since)
			began := time.Now()
			w.end(0, false, false)
			w.running.Wait()
			if took := time.Since(began); took > shutdownCommit+releaseWithin {
				t.Errorf("hanging for %s: it took %s to stop", since, took)
			}
			w.redis.mu.Lock()
			w.redis.latency = 0
			w.redis.mu.Unlock()
			w.close()
		})
	}
}
