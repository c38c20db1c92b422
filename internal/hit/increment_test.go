package hit

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// An increment of NATS's own counters counts on its subject; what cannot be counted is refused and named.
func TestIncrementsOfNATSCountersAreHits(t *testing.T) {
	t.Parallel()
	d := NewDecoder(testLimits)
	for _, test := range []struct {
		increment string
		n         int64 // 0: nothing is counted
		reason    Reason
	}{
		{"1", 1, ""},
		{"+5", 5, ""},
		{fmt.Sprint(int64(MaxN)), MaxN, ""},
		{"0", 0, ""},
		{"-0", 0, ""},
		{fmt.Sprint(int64(MaxN + 1)), 0, BadCount},
		{"-3", 0, BadCount},
		{"123456789012345678901234567890", 0, BadCount},
		{"1.5", 0, BadCount},
	} {
		hits, rejects := d.DecodeIncrement("visits", 5, test.increment, []byte(`{"val":"9"}`))
		if test.reason != "" {
			require.Len(t, rejects, 1, test.increment)
			require.Equal(t, test.reason, rejects[0].Reason)
			require.Contains(t, rejects[0].Detail, test.increment[:1])
			require.Equal(t, `{"val":"9"}`, string(rejects[0].Body))
			continue
		}
		require.Empty(t, rejects, test.increment)
		if test.n == 0 {
			require.Empty(t, hits, test.increment)
			continue
		}
		require.Len(t, hits, 1)
		require.Equal(t, "visits", string(hits[0].Counter))
		require.Equal(t, [2]int64{test.n, 5}, [2]int64{hits[0].N, hits[0].At})
	}
	_, rejects := d.DecodeIncrement("bad\x01name", 5, "1", nil)
	require.Equal(t, BadKey, rejects[0].Reason)
}
