package boot

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
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
			obey(signals, func() { stopped = true })
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

func TestRevisionNamesCommitAndDirt(t *testing.T) {
	for want, settings := range map[string][]debug.BuildSetting{
		"":             {{Key: "GOOS", Value: "linux"}, {Key: "vcs.modified", Value: "true"}},
		"0012ab":       {{Key: "vcs.revision", Value: "0012ab"}, {Key: "vcs.modified", Value: "false"}},
		"0012ab+dirty": {{Key: "vcs.revision", Value: "0012ab"}, {Key: "vcs.modified", Value: "true"}},
	} {
		require.Equal(t, want, revisionOf(&debug.BuildInfo{Settings: settings}))
	}
}

func TestBallastLetsGarbageWait(t *testing.T) {
	goal := func() uint64 {
		runtime.GC()
		sample := []metrics.Sample{{Name: "/gc/heap/goal:bytes"}}
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	before := goal()
	TakeBallast()
	t.Cleanup(func() { ballast = nil })
	if after := goal(); after < before+ballastBytes {
		t.Errorf("the heap is collected at %d bytes, and was at %d", after, before)
	}
}
