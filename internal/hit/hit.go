package hit

import "math"

// MaxN is the largest n of one hit. An int64 holds the sum of 8 million of these.
const MaxN = 1 << 40

// NoTime is the time of a hit that should count at the time at which it is stored.
// Only producers have such hits: Decoder gives each hit a time.
const NoTime = math.MinInt64

// Hit is something that happened N times. Its counter may point into memory that will be
// reused: if you keep a hit, copy its counter.
type Hit struct {
	Counter []byte
	N       int64
	At      int64  // Unix milliseconds, or NoTime
	Hash    uint64 // of the counter, as Limits.Place gives it; 0 in a producer's hits
}
