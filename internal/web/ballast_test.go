package web

import (
	"runtime"
	"runtime/metrics"
	"testing"
)

func TestBallastLetsGarbageWait(t *testing.T) {
	goal := func() uint64 {
		runtime.GC()
		sample := []metrics.Sample{{Name: "/gc/heap/goal:bytes"}}
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	before := goal()
	AllocateBallast()
	t.Cleanup(func() { ballast = nil })
	if after := goal(); after < before+ballastBytes {
		t.Errorf("the heap is collected at %d bytes, and was at %d", after, before)
	}
}
