package human

import (
	"fmt"
	"strconv"
	"time"
)

var notation = []struct {
	suffix byte
	length time.Duration
}{
	{'y', 365 * day}, // calendar years have a day more every four
	{'w', 7 * day},
	{'d', day},
	{'h', time.Hour},
	{'m', time.Minute},
	{'s', time.Second},
}

// maxDuration keeps sums of durations and times far from overflow.
const maxDuration = 10 * 365 * day

// ParseDuration parses a positive whole number and a unit (s, m, h, d of 24 hours, w of 7 days, y of 365
// days), such as 90s, 15m, 24h, 7d or 1y; at most ten years.
func ParseDuration(s string) (time.Duration, error) {
	if len(s) >= 2 {
		for _, u := range notation {
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
	return 0, fmt.Errorf("%q is not a duration: write a whole number and a unit (s, m, h, d, w, y), such as 90s, "+
		"15m or 7d", s)
}

// DurationPattern is a regular expression for what ParseDuration reads, without its longest duration.
func DurationPattern() string {
	units := make([]byte, len(notation))
	for i, u := range notation {
		units[i] = u.suffix
	}
	return "^0*[1-9][0-9]*[" + string(units) + "]$"
}

// FormatDuration formats whole seconds with the largest unit that divides them, but weeks and years in days:
// 60 s is 1m, 90 s is 90s, 14 days 14d. (Earlier versions, which read the layout record, do not know y.)
func FormatDuration(d time.Duration) string { return string(AppendDuration(nil, d)) }

func AppendDuration(to []byte, d time.Duration) []byte {
	if d == 0 {
		return append(to, "0s"...)
	}
	for _, u := range notation[2:] {
		if d%u.length == 0 {
			return append(strconv.AppendInt(to, int64(d/u.length), 10), u.suffix)
		}
	}
	return append(to, d.String()...)
}
