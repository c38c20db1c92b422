package boot

import (
	"bytes"
	"strings"
	"testing"
)

const (
	traceID     = "4bf92f3577b34da6a3ce929d0e0e4736"
	traceParent = "00-" + traceID + "-00f067aa0ba902b7-01"
)

func TestTraceParent(t *testing.T) {
	for _, c := range []struct {
		what, value, want string
	}{
		{"as it should be", traceParent, traceParent},
		{"of a later version", "cc" + traceParent[2:], traceParent},
		{"of a later version that says more", "cc" + traceParent[2:] + "-what-the-future-will-be-like", traceParent},
		{"of a later version that goes on otherwise", "cc" + traceParent[2:] + ".x", ""},
		{"with more than version 00 has", traceParent + "-x", ""},
		{"of the version that is none", "ff" + traceParent[2:], ""},
		{"in upper case", strings.ToUpper(traceParent), ""},
		{"no trace", "00-" + strings.Repeat("0", 32) + "-00f067aa0ba902b7-01", ""},
		{"no parent", "00-" + traceID + "-0000000000000000-01", ""},
		{"too short", traceParent[:54], ""},
		{"another separator", strings.ReplaceAll(traceParent, "-", "_"), ""},
		{"no digits", strings.Replace(traceParent, "f", "g", 1), ""},
		{"empty", "", ""},
	} {
		for _, name := range []string{"Traceparent", "traceparent"} {
			if got := TraceParent(map[string][]string{name: {c.value}}); got != c.want {
				t.Errorf("%s: %s: %q, want %q", c.what, name, got, c.want)
			}
		}
	}
	if got := TraceParent(map[string][]string{"Traceparent": {traceParent, traceParent}}); got != "" {
		t.Errorf("two: %q", got)
	}
	if got := TraceParent(nil); got != "" {
		t.Errorf("none: %q", got)
	}
}

// A line has the trace of the request whose context it has, and of no other.
func TestLogNamesTheTrace(t *testing.T) {
	var out bytes.Buffer
	log := Sampled(Log{Format: "json"}.New(&out)) // as clients' failures are
	ctx := WithTrace(t.Context(), map[string][]string{"Traceparent": {traceParent}})
	log.Warn().Ctx(ctx).Msg("with")
	log.Warn().Ctx(t.Context()).Msg("without")
	log.Warn().Msg("alone")
	if got := out.String(); strings.Count(got, "trace_id") != 1 || !strings.Contains(got, `"message":"with"}`) || !strings.Contains(got, `"trace_id":"`+traceID+`","message":"with"`) {
		t.Errorf("%s", got)
	}
}
