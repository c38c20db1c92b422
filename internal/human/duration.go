// Package human formats durations and numbers for sentences in logs, errors and rejects. What is read
// back by a program, such as a setting, has a notation of its own (ParseDuration, FormatDuration).
package human

import (
	"fmt"
	"math"
	"time"
)

const (
	day  = 24 * time.Hour
	year = 365*day + 6*time.Hour // on average
)

var units = []struct {
	name   string
	length time.Duration
	next   time.Duration // of the unit that follows
}{
	{"day", day, time.Hour},
	{"hour", time.Hour, time.Minute},
	{"minute", time.Minute, time.Second},
}

// Duration is how long something takes, in one unit or two: 250 ms, 1.5 seconds, 1 minute 30 seconds, 3 days,
// 56 years. It has no sign, and rounds to the lesser unit.
func Duration(d time.Duration) string {
	if d < 0 {
		d = -max(d, -math.MaxInt64)
	}
	switch {
	case d == 0:
		return "0 seconds"
	case d < time.Millisecond:
		return "less than 1 ms"
	case d < time.Second-time.Millisecond/2:
		return fmt.Sprintf("%d ms", d.Round(time.Millisecond)/time.Millisecond)
	case d < 10*time.Second-50*time.Millisecond:
		tenths := int64(d.Round(100*time.Millisecond) / (100 * time.Millisecond))
		if tenths%10 != 0 {
			return fmt.Sprintf("%d.%d seconds", tenths/10, tenths%10)
		}
		return several(tenths/10, "second")
	case d < time.Minute-time.Second/2:
		return several(int64(d.Round(time.Second)/time.Second), "second")
	case d >= 2*year:
		return several(int64(d.Round(year)/year), "year")
	}
	for i, u := range units {
		next, lesser := "second", time.Second // the unit that follows, and what that one is rounded to
		if i+1 < len(units) {
			next, lesser = units[i+1].name, units[i+1].next
		}
		if d.Round(lesser) < u.length {
			continue // 23 hours 59 minutes are not yet a day
		}
		whole := d.Round(u.next)
		text := several(int64(whole/u.length), u.name)
		if rest := int64(whole % u.length / u.next); rest > 0 {
			text += " " + several(rest, next)
		}
		return text
	}
	return "1 minute"
}

func several(n int64, unit string) string {
	if n != 1 {
		unit += "s"
	}
	return fmt.Sprintf("%d %s", n, unit)
}

// Millis is Duration for n milliseconds, as between two Unix times, which can be further apart than a
// time.Duration.
func Millis(n int64) string {
	const most = math.MaxInt64 / int64(time.Millisecond)
	if n >= -most && n <= most {
		return Duration(time.Duration(n) * time.Millisecond)
	}
	return several(int64(math.Round(math.Abs(float64(n))/float64(year/time.Millisecond))), "year")
}
