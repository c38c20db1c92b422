package main

import (
	"context"
	"errors"
	"math"
	"net/http"
	"runtime"
	"runtime/debug"
	gometrics "runtime/metrics"
	"strings"
	"time"

	"tallyroll/internal/query/fresh"
	"tallyroll/internal/web"
)

// requestLimiter bounds how many requests run, and how many are let in, whose forms take memory.
type requestLimiter struct{ admitted, running chan struct{} }

func newRequestLimiter(s Settings) requestLimiter {
	return requestLimiter{make(chan struct{}, s.MaxRequests), make(chan struct{}, s.Concurrency)}
}

// limitRequests refuses a request if there are too many. Otherwise it parses the form, waits for a slot, and
// runs the query, all within the time that the request and the settings allow.
func (s *service) limitRequests(run queryFunc) encoder {
	encode := encodeResult(run)
	return func(r *http.Request) ([]byte, error) {
		select {
		case s.limiter.admitted <- struct{}{}:
		default:
			return nil, newUnavailable("%d requests are in progress, which is the limit (PROMQL_MAX_REQUESTS): retry "+
				"in a second", s.settings.MaxRequests)
		}
		defer func() { <-s.limiter.admitted }()
		if err := s.readForm(r); err != nil {
			return nil, err
		}
		timeout, err := readDuration(r, "timeout", false)
		if err != nil {
			return nil, err
		}
		if timeout == 0 || timeout > s.settings.Timeout {
			timeout = s.settings.Timeout
		}
		ctx, cancel := context.WithTimeout(r.Context(), timeout)
		defer cancel()
		if err := s.awaitCounting(ctx, r.Header); err != nil {
			return nil, err
		}
		select {
		case s.limiter.running <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		defer func() { <-s.limiter.running }()
		ctx, stop := s.memory.watch(ctx)
		defer stop()
		text, err := encode(r.WithContext(ctx))
		if err != nil && errors.Is(context.Cause(ctx), errMemory) {
			err = newUnavailable("the queries that ran needed more memory than allowed (GOMEMLIMIT) and were ended: " +
				"select fewer counters or a shorter time, or retry in a second")
		}
		return text, err
	}
}

// The headers by which a request asks that counting is so far: see package fresh.
const afterHeader, maxAgeHeader, waitHeader = "Tallyroll-After", "Tallyroll-Max-Age", "Tallyroll-Wait"

// awaitCounting waits until counting is as far as the headers ask. Only complete cells have samples, so it
// also waits for the cells of the messages.
func (s *service) awaitCounting(ctx context.Context, header http.Header) error {
	var after []string
	for _, values := range header.Values(afterHeader) {
		for text := range strings.SplitSeq(values, ",") {
			after = append(after, strings.TrimSpace(text))
		}
	}
	condition, err := fresh.Names{After: afterHeader, MaxAge: maxAgeHeader, Wait: waitHeader}.Parse(after,
		header.Get(maxAgeHeader), header.Get(waitHeader))
	if err == nil {
		condition.WholeCells = true
		err = s.fresh.Await(ctx, condition)
	}
	var bad *web.InputError
	var p *web.Problem
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &bad):
		return newBadData("%v", bad)
	case errors.As(err, &p):
		return newUnavailable("%s", p.Detail)
	}
	return err
}

func (s *service) readForm(r *http.Request) error {
	if err := r.ParseForm(); err != nil {
		return newBadData("the form cannot be read: %v", err)
	}
	return nil
}

// memoryLimit is the process's memory limit in bytes: GOMEMLIMIT, or else what the settings need. Go collects
// garbage before the limit is reached. If live memory comes near it, running queries are ended.
type memoryLimit int64

// errMemory is the cause with which those queries end.
var errMemory = errors.New("memory is short")

const (
	baseMemory     = 256 << 20
	bytesPerSample = 256 // a query of a million took 130 MB, from the cells to the text of the answer
	bytesPerCell   = 110 // see PROMQL_MAX_CELLS
	// watchEvery is the pause between checks of memory. A query can fill 20 MB in this time.
	watchEvery = 10 * time.Millisecond
)

func setMemoryLimit(s Settings) memoryLimit {
	if s.Memory == "" { // if it is set, the runtime has read it
		perQuery := max(float64(s.MaxSamples)*bytesPerSample, float64(s.MaxCells)*bytesPerCell)
		debug.SetMemoryLimit(int64(min(baseMemory+float64(s.Concurrency)*perQuery, math.MaxInt64/2)))
	}
	return memoryLimit(debug.SetMemoryLimit(-1))
}

// watch returns a context that ends with errMemory if three quarters of the limit are in use, until stop. A
// query that ends before the first check costs no goroutine.
func (m memoryLimit) watch(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	done := make(chan struct{})
	first := time.AfterFunc(watchEvery, func() {
		defer close(done)
		m.endIfShort(ctx, cancel)
	})
	return ctx, func() {
		isShort := errors.Is(context.Cause(ctx), errMemory)
		cancel(nil)
		if !first.Stop() {
			<-done
		}
		if isShort {
			debug.FreeOSMemory() // before the next query begins
		}
	}
}

func (m memoryLimit) endIfShort(ctx context.Context, end context.CancelCauseFunc) {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for _, lastCollection := readMemoryInUse(); ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		bytes, collection := readMemoryInUse()
		if collection != lastCollection && m.isNear(bytes) {
			runtime.GC() // pools keep memory of ended queries in use for one more collection
			if bytes, collection = readMemoryInUse(); m.isNear(bytes) {
				end(errMemory)
				return
			}
		}
		lastCollection = collection
	}
}

func (m memoryLimit) isNear(inUse uint64) bool { return inUse > uint64(m)/4*3 }

// readMemoryInUse returns the bytes in use at the last garbage collection, and the number of that.
func readMemoryInUse() (bytes, collection uint64) {
	samples := []gometrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/cycles/total:gc-cycles"}}
	gometrics.Read(samples)
	return samples[0].Value.Uint64(), samples[1].Value.Uint64()
}
