package main

import (
	"context"
	"errors"
	"math"
	"runtime"
	"runtime/debug"
	gometrics "runtime/metrics"
	"time"
)

// memory is what the process may hold, in bytes: GOMEMLIMIT, or what the settings need if that is not set. Go collects
// garbage before it is reached. If what is in use comes near it, no garbage helps, and the queries that run are ended.
type memory int64

// errMemory is why those queries end.
var errMemory = errors.New("memory is short")

const (
	baseMemory     = 256 << 20
	bytesPerSample = 256 // a query of a million took 130 MB, from the cells to the text of the answer
	bytesPerCell   = 110 // see PROMQL_MAX_CELLS
	// watchEvery is how often the watch looks. A query can fill 20 MB in this time.
	watchEvery = 10 * time.Millisecond
)

// limitMemory sets the limit of the process.
func limitMemory(s Settings) memory {
	if s.Memory == "" { // if it is set, the runtime has read it
		each := max(float64(s.MaxSamples)*bytesPerSample, float64(s.MaxCells)*bytesPerCell)
		debug.SetMemoryLimit(int64(min(baseMemory+float64(s.Concurrency)*each, math.MaxInt64/2)))
	}
	return memory(debug.SetMemoryLimit(-1))
}

// watch ends the context that it returns, with errMemory, if three quarters of the limit are in use. stop must be
// called at the end of the query.
func (m memory) watch(parent context.Context) (ctx context.Context, stop func()) {
	ctx, end := context.WithCancelCause(parent)
	over := make(chan struct{})
	go func() {
		defer close(over)
		ticker := time.NewTicker(watchEvery)
		defer ticker.Stop()
		for _, seen := inUse(); ; {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			bytes, collection := inUse()
			if collection != seen && m.short(bytes) {
				runtime.GC() // what ended queries have put into pools is in use for one collection more
				if bytes, collection = inUse(); m.short(bytes) {
					end(errMemory)
					return
				}
			}
			seen = collection
		}
	}()
	return ctx, func() {
		short := errors.Is(context.Cause(ctx), errMemory)
		end(nil)
		<-over
		if short {
			debug.FreeOSMemory() // before the next query begins
		}
	}
}

func (m memory) short(inUse uint64) bool { return inUse > uint64(m)/4*3 }

// inUse returns how many bytes were in use at the last collection of garbage, and which one that was.
func inUse() (bytes, collection uint64) {
	samples := []gometrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/cycles/total:gc-cycles"}}
	gometrics.Read(samples)
	return samples[0].Value.Uint64(), samples[1].Value.Uint64()
}
