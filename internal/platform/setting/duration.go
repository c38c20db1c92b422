package setting

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

const durationForms = "a duration: numbers with units (ms, s, m, h, d of 24 hours, w of 7 days), such as 250ms, 10s, " +
	"48h or 2d"

var errDuration = errors.New(durationForms)

// ParseDuration is time.ParseDuration with days and weeks in front: 250ms, 48h, 2d, 1w, 1d12h, 1.5d.
func ParseDuration(text string) (time.Duration, error) {
	rest, negative := strings.CutPrefix(text, "-")
	var days time.Duration
	found := false
	for _, unit := range []struct {
		name   string
		length time.Duration
	}{{"w", 7 * 24 * time.Hour}, {"d", 24 * time.Hour}} {
		number, after, ok := strings.Cut(rest, unit.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(number, 64)
		length := n * float64(unit.length)
		if err != nil || strings.Trim(number, "0123456789.") != "" || length >= math.MaxInt64/4 {
			return 0, errDuration
		}
		days, rest, found = days+time.Duration(length), after, true
	}
	hours := time.Duration(0)
	if rest != "" || !found {
		var err error
		if hours, err = time.ParseDuration(rest); err != nil || hours < 0 || hours > math.MaxInt64/2 {
			return 0, errDuration
		}
	}
	if negative {
		return -(days + hours), nil
	}
	return days + hours, nil
}
