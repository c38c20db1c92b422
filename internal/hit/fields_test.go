package hit

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// valuesOf are values of a field, in JSON, and whether a hit can have them.
func valuesOf(f Field) map[string]bool {
	out := map[string]bool{"null": false, "{}": false, "true": false, "1.5": false}
	for _, kind := range strings.Fields(f.Types) {
		switch {
		case kind == "integer":
			out[fmt.Sprint(f.Least)], out[fmt.Sprint(f.Least-1)], out[fmt.Sprint(f.Most)], out[fmt.Sprint(f.Most+1)] = true, false, true, false
		case kind == "boolean":
			out["true"], out["false"] = true, true
		case f.Types != "string": // a time
			for at, ok := range map[int64]bool{f.Least: true, f.Most: true} {
				out[fmt.Sprintf("%q", time.UnixMilli(at).UTC().Format(time.RFC3339Nano))] = ok
			}
		default:
			text := func(n int64) string { return `"` + strings.Repeat("a", int(n)) + `"` }
			out[text(f.Least)], out[text(f.Least-1)], out[text(f.Most)], out[text(f.Most+1)] = true, false, true, false
		}
	}
	if !strings.Contains(f.Types, "string") {
		out[`"1"`] = false
	}
	if !strings.Contains(f.Types, "integer") {
		out["1"] = false
	}
	return out
}

// anyTime is a decoder whose tiers hold every moment.
func anyTime() *Decoder {
	return NewDecoder(Limits{MaxHits: 1, Place: func([]byte, int64, int64) (uint64, string) { return 0, "" }})
}

// Both readers take of each field what Fields says, and refuse mistakes for it; what a producer's hit has, it
// has again when it is written.
func TestReadersFollowTheFields(t *testing.T) {
	t.Parallel()
	for _, f := range Fields {
		for value, ok := range valuesOf(f) {
			for _, form := range []string{`{"x":0,%q:%s}`, `{%q: %s}`} { // the first is none of the fast path
				object := fmt.Sprintf(form, f.Name, value)
				hits, rejects := anyTime().Decode("subject", MaxTime, []byte(object))
				require.Equal(t, ok, len(hits) == 1 && rejects == nil, "%.80s: %v", object, rejects)
				if !ok {
					continue
				}
				again, rejects := anyTime().Decode("other", MaxTime, hits[0].AppendJSON(nil))
				require.Empty(t, rejects)
				require.Equal(t, hits, again, "%.80s", object)
			}
		}
		for _, mistake := range f.Mistakes {
			_, rejects := NewDecoder(Limits{MaxHits: 1}).Decode("subject", 0, fmt.Appendf(nil, `{%q:1}`, mistake))
			require.Len(t, rejects, 1, mistake)
			require.Equal(t, BadField, rejects[0].Reason)
			require.Contains(t, rejects[0].Detail, fmt.Sprintf("use %q", f.Name))
		}
	}
}

// The tables of the pages have the fields, and the bounds that producers must keep.
func TestPagesHaveTheFields(t *testing.T) {
	t.Parallel()
	table := func(page, after string) (rows map[string]string) {
		text, err := os.ReadFile("../../docs/" + page)
		require.NoError(t, err)
		_, rest, found := strings.Cut(string(text), after)
		require.True(t, found, "%s: %s", page, after)
		rows = make(map[string]string)
		rest, _, _ = strings.Cut(strings.TrimLeft(rest, "\n"), "\n\n")
		for _, row := range regexp.MustCompile("(?m)^\\| `([a-z]+)` \\| (.*)$").FindAllStringSubmatch(rest, -1) {
			rows[row[1]] = row[2]
		}
		return rows
	}
	payloads := table("payloads.md", "All fields are optional.\n")
	require.Len(t, payloads, len(Fields))
	rules := table("rules.md", "| `count` | list of counters | required |\n")
	bounds := map[string]string{"key": "1 to 512 bytes", "n": "1 to 2⁴⁰", "ts": "1 to 9999", "unique": "1 to 512 bytes", "all": "`true` or `false`"}
	for _, f := range Fields {
		require.Contains(t, payloads[f.Name], bounds[f.Name], f.Name)
		if f.Name != "ts" && f.Name != "all" { // of a rule, not of its counters; and of no rule
			require.NotEmpty(t, rules[f.Name], f.Name)
		}
	}
	require.Contains(t, rules["n"], bounds["n"])
}
