package program

import (
	"os"
	"testing"
	"testing/synctest"
	"time"
)

func TestSignalsWithinASecondAreOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signals := make(chan os.Signal, 1)
		stopped, gaveUp := false, false
		go func() {
			awaitSignals(signals, func() { stopped = true })
			gaveUp = true
		}()
		for _, step := range []struct {
			after           time.Duration
			stopped, gaveUp bool
		}{{0, true, false}, {0, true, false}, {time.Millisecond, true, false}, {900 * time.Millisecond, true, false}, {200 * time.Millisecond, true, true}} {
			time.Sleep(step.after)
			signals <- os.Interrupt
			synctest.Wait()
			if stopped != step.stopped || gaveUp != step.gaveUp {
				t.Fatalf("%v later: stopped %v, gave up %v; want %+v", step.after, stopped, gaveUp, step)
			}
		}
	})
}
