package window

import (
	"fmt"
	"strconv"
	"time"
)

var units = []struct {
	suffix byte
	length time.Duration
}{
	{'w', 7 * 24 * time.Hour},
	{'d', 24 * time.Hour},
	{'h', time.Hour},
	{'m', time.Minute},
	{'s', time.Second},
}

// maxDuration keeps sums of durations and times far from overflow.
const maxDuration = 10 * 365 * 24 * time.Hour

// ParseDuration reads a positive whole number and a unit (s, m, h, d of 24
// hours, w of 7 days), such as 90s, 15m, 24h, 7d or 1w; at most ten years.
func ParseDuration(s string) (time.Duration, error) {
	if len(s) >= 2 {
		for _, u := range units {
			if s[len(s)-1] != u.suffix {
				continue
			}
			n, err := strconv.ParseUint(s[:len(s)-1], 10, 32)
			if err != nil || n == 0 || s[0] == '+' {
				break
			}
			if n > uint64(maxDuration/u.length) {
				return 0, fmt.Errorf("%q is longer than ten years", s)
			}
			return time.Duration(n) * u.length, nil
		}
	}
	return 0, fmt.Errorf("%q is not a duration: write a whole number and a unit (s, m, h, d, w), such as 90s, 15m or 7d", s)
}

// FormatDuration writes whole seconds with the largest unit that divides them,
// except that weeks are written in days: 60 s is 1m, 90 s is 90s, 14 days 14d.
func FormatDuration(d time.Duration) string { return string(appendDuration(nil, d)) }

func appendDuration(to []byte, d time.Duration) []byte {
	if d == 0 {
		return append(to, "0s"...)
	}
	for _, u := range units[1:] {
		if d%u.length == 0 {
			return append(strconv.AppendInt(to, int64(d/u.length), 10), u.suffix)
		}
	}
	return append(to, d.String()...)
}
