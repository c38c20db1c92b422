package human

import "strconv"

// Thousands rounds to a whole number and writes it with commas: 1,234,567.
func Thousands(n float64) string {
	s := strconv.FormatFloat(n, 'f', 0, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
