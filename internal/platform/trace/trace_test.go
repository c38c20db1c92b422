package trace

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	traceID     = "4bf92f3577b34da6a3ce929d0e0e4736"
	traceParent = "00-" + traceID + "-00f067aa0ba902b7-01"
)

func TestTraceParentIsTakenIfValid(t *testing.T) {
	for _, c := range []struct {
		what, value, want string
	}{
		{"as it should be", traceParent, traceParent},
		{"of a later version", "cc" + traceParent[2:], traceParent},
		{"of a later version that says more", "cc" + traceParent[2:] + "-what-the-future-will-be-like", traceParent},
		{"of a later version that goes on otherwise", "cc" + traceParent[2:] + ".x", ""},
		{"with more than version 00 has", traceParent + "-x", ""},
		{"of the invalid version", "ff" + traceParent[2:], ""},
		{"in upper case", strings.ToUpper(traceParent), ""},
		{"no trace", "00-" + strings.Repeat("0", 32) + "-00f067aa0ba902b7-01", ""},
		{"no parent", "00-" + traceID + "-0000000000000000-01", ""},
		{"too short", traceParent[:54], ""},
		{"another separator", strings.ReplaceAll(traceParent, "-", "_"), ""},
		{"no digits", strings.Replace(traceParent, "f", "g", 1), ""},
		{"empty", "", ""},
	} {
		for _, name := range []string{"Traceparent", "traceparent"} {
			require.Equal(t, c.want, Parent(map[string][]string{name: {c.value}}), c.what)
		}
	}
	require.Empty(t, Parent(map[string][]string{"Traceparent": {traceParent, traceParent}}))
	require.Empty(t, Parent(nil))
}
