package limit

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/cases"
)

// Redis is left alone if it fails. A key that alone is slow says nothing about the others.
func TestBreakerLeavesRedisAloneIfItFails(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(worldStart)
	cases.Check(t, "breaker", func(t *testing.T, _, given string) string {
		var b breaker
		for event := range strings.SplitSeq(given, ", ") {
			key, what, _ := strings.Cut(event, " ")
			switch what {
			case "is slow", "fails":
				b.failed(key, what == "is slow", now)
			case "answers":
				b.answered()
			}
		}
		b2, a := b.mayAsk("b", now), b.mayAsk("a", now)
		later := now.Add(downFor)
		require.True(t, b.mayAsk("a", later), "after a while, one may ask")
		require.Equal(t, a, b.mayAsk("a", later), "just one")
		return fmt.Sprintf("may ask about a: %t, about b: %t", a, b2)
	})
}
