package program

import (
	"context"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
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

func TestInterruptIsCalledSo(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	err := fmt.Errorf("connect to NATS: %w", context.Canceled)
	require.Equal(t, err.Error(), describe(ctx, err))
	cancel()
	require.Equal(t, "connect to NATS: interrupted", describe(ctx, err))
}
