package human

import (
	"cmp"
	"regexp"
	"strconv"
)

var percent = regexp.MustCompile(`^([0-9]{1,7})(?:\.([0-9]{1,2}))?%$`)

// ParsePercent reads a percentage with up to two decimals, such as 80% or 99.95%, in hundredths of a percent.
func ParsePercent(text string) (n int64, ok bool) {
	m := percent.FindStringSubmatch(text)
	if m == nil {
		return 0, false
	}
	n, err := strconv.ParseInt(m[1]+(cmp.Or(m[2], "0") + "0")[:2], 10, 64)
	return n, err == nil
}
