package human

import (
	"fmt"
	"testing"

	"tallyroll/tests/cases"
)

// What is written in settings is read, or refused with the reason, and written in the shortest way.
func TestDurationsAreParsed(t *testing.T) {
	t.Parallel()
	cases.Check(t, "durations", func(_ *testing.T, _, given string) string {
		d, err := ParseDuration(given)
		if err != nil {
			return "error: " + err.Error()
		}
		return fmt.Sprintf("%v, written as %s", d, FormatDuration(d))
	})
}
