package limit

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// How far off are counters that do not keep every hit? Each one decides about the same traffic, which asks for
// half as much again as the limit allows. Beside it, every hit that it has allowed is kept, so each decision can be
// compared with that of a window that is exact.

const (
	errorWindow  = time.Minute
	errorMax     = 100
	errorWindows = 1000 // that a schedule lasts
	errorAsked   = 1.5  // hits asked for in a window, in errorMax
)

// errorCounter is a limiter of one key: it allows a hit and counts it, or refuses. Times are Unix milliseconds.
type errorCounter struct {
	name string
	new  func() (allow func(at int64) bool)
}

// exactCounter keeps every hit.
var exactCounter = errorCounter{"exact", func() func(int64) bool {
	var exact exactWindow
	return func(at int64) bool {
		allowed := exact.at(at) < errorMax
		if allowed {
			exact.add(at)
		}
		return allowed
	}
}}

// exactWindow is the times of hits.
type exactWindow struct{ hits []int64 }

func (e *exactWindow) add(at int64) { e.hits = append(e.hits, at) }

// at is how many hits the window has that ends then.
func (e *exactWindow) at(now int64) int {
	for len(e.hits) > 0 && e.hits[0] <= now-errorWindow.Milliseconds() {
		e.hits = e.hits[1:]
	}
	return len(e.hits)
}

var errorCounters = []errorCounter{
	{"cells, 60 in a window", func() func(int64) bool {
		var r ring
		return func(at int64) bool {
			v := r.at(time.UnixMilli(at), errorWindow)
			allowed := float64(v.estimate())+1 <= errorMax
			if allowed {
				r.add(&v, 1)
			}
			return allowed
		}
	}},
	{"two numbers, sliding", func() func(int64) bool {
		var number, count, before int64
		return func(at int64) bool {
			length := errorWindow.Milliseconds()
			if n := at / length; n != number {
				if n > number+1 {
					count = 0
				}
				number, count, before = n, 0, count
			}
			part := 1 - float64(at%length)/float64(length)
			allowed := float64(before)*part+float64(count)+1 <= errorMax
			if allowed {
				count++
			}
			return allowed
		}
	}},
	{"fixed window", func() func(int64) bool {
		var number, count int64
		return func(at int64) bool {
			if n := at / errorWindow.Milliseconds(); n != number {
				number, count = n, 0
			}
			allowed := count < errorMax
			if allowed {
				count++
			}
			return allowed
		}
	}},
}

// errorTraffic yields the times of hits.
type errorTraffic struct {
	name string
	gap  func(r *rand.Rand, mean float64) float64 // milliseconds to the next hit
}

var errorTraffics = []errorTraffic{
	{"even", func(r *rand.Rand, mean float64) float64 { return mean * (0.9 + 0.2*r.Float64()) }},
	{"bursts of 30", func(r *rand.Rand, mean float64) float64 {
		if r.IntN(30) > 0 {
			return 20 * r.Float64()
		}
		return 30 * (mean - 10) * r.ExpFloat64()
	}},
	// Few long pauses make up most of the time, as between the visits of a person: Pareto's law with exponent 1.5.
	{"long pauses", func(r *rand.Rand, mean float64) float64 { return mean / 3 * math.Pow(1-r.Float64(), -1/1.5) }},
}

// errorFigures say how a counter did on a schedule. Shares and sizes are percentages; sizes are of max.
type errorFigures struct {
	counter, traffic string
	decisions        int
	tooMany, tooFew  float64 // decisions that allowed what the exact window refuses, and the other way round
	allowed          float64 // hits allowed in all, of those that an exact limiter allows
	meanOver         float64 // hits above max in the exact window, the mean over decisions
	mostOver         float64 // and the most
}

// measureErrors runs all counters on all traffic. It yields the same figures every time.
func measureErrors() (out []errorFigures) {
	for _, traffic := range errorTraffics {
		_, exact := measureError(exactCounter, traffic)
		for _, counter := range errorCounters {
			f, allowed := measureError(counter, traffic)
			f.allowed = 100 * float64(allowed) / float64(exact)
			out = append(out, f)
		}
	}
	return out
}

// measureError also says how many hits were allowed.
func measureError(counter errorCounter, traffic errorTraffic) (f errorFigures, allowed int) {
	random := rand.New(rand.NewPCG(1, 2))
	length := errorWindow.Milliseconds()
	const begin = 1_800_000_000_000
	mean := float64(length) / errorMax / errorAsked
	allow := counter.new()
	f = errorFigures{counter: counter.name, traffic: traffic.name}
	var truth exactWindow // of the hits that were allowed
	over, most, tooMany, tooFew := 0, 0, 0, 0
	for at := float64(begin); at < float64(begin+errorWindows*length); at += traffic.gap(random, mean) {
		now := int64(at)
		fits, allows := truth.at(now) < errorMax, allow(now)
		if allows {
			truth.add(now)
			allowed++
		}
		switch {
		case allows && !fits:
			tooMany++
		case fits && !allows:
			tooFew++
		}
		excess := max(0, truth.at(now)-errorMax)
		over, most = over+excess, max(most, excess)
		f.decisions++
	}
	percent := func(n int) float64 { return 100 * float64(n) / float64(f.decisions) }
	f.tooMany, f.tooFew, f.meanOver = percent(tooMany), percent(tooFew), percent(over)/errorMax
	f.mostOver = 100 * float64(most) / errorMax
	return f, allowed
}

// errorTable is the figures as a table of Markdown.
func errorTable(all []errorFigures) string {
	out := "| traffic | counter | wrongly allowed | wrongly refused | allowed in all, of exact | " +
		"above max, mean | above max, most |\n" +
		"| --- | --- | --- | --- | --- | --- | --- |\n"
	for _, f := range all {
		out += fmt.Sprintf("| %s | %s | %.2f %% | %.2f %% | %.1f %% | %.2f %% | %.0f %% |\n",
			f.traffic, f.counter, f.tooMany, f.tooFew, f.allowed, f.meanOver, f.mostOver)
	}
	return out
}
