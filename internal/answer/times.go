package answer

import "time"

// Time returns a moment in the form that answers have.
func Time(milli int64) time.Time { return time.UnixMilli(milli).UTC() }

// Since is when counting began, or the zero time, which answers omit, if that is unknown.
func Since(milli int64) time.Time {
	if milli == 0 {
		return time.Time{}
	}
	return Time(milli)
}

var SinceExample = time.Date(2026, 10, 1, 8, 0, 0, 0, time.UTC)

// SecondsSince is never negative, because clocks are estimates.
func SecondsSince(then, now int64) float64 { return float64(max(0, now-then)) / 1000 }
