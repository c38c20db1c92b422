package answer

import (
	"encoding/csv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/internal/window/read"
)

// A token says what it was made of, and one that lacks a part says nothing.
func TestTokenSaysWhatItWasMadeOf(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		step := rapid.Int64Range(1, 1<<40).Draw(t, "step")
		from := rapid.Int64Range(0, 1000).Draw(t, "from") * step
		want := token{
			Version: tokenVersion, Namespace: rapid.String().Draw(t, "namespace"), Prefix: rapid.String().Draw(t, "prefix"),
			From: from, To: from + step*rapid.Int64Range(0, 9).Draw(t, "steps"),
			Step: step, Cut: rapid.Bool().Draw(t, "cut"), Counter: rapid.String().Draw(t, "counter"), Inside: rapid.Int64().Draw(t, "inside"),
		}
		text := want.String()
		if got, ok := parseToken(text); !ok || got != want {
			t.Fatalf("%+v from %+v", got, want)
		}
		at := rapid.IntRange(0, len(text)-1).Draw(t, "at")
		for _, other := range []string{text[:at], text[at+1:], text[:at] + "_" + text[at:]} {
			if got, ok := parseToken(other); ok && other != text {
				t.Fatalf("%q is %+v", other, got)
			}
		}
	})
}

// A row is read again as it was, whatever the name.
func TestExportedRowIsReadAsItWas(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[ -~äß😀]{1,20}`).Draw(t, "name")
		e := &Export{Export: read.Export{Step: 60e9}}
		e.add(read.ExportRow{Counter: name, From: 1795255200000, Hits: 7})
		e.add(read.ExportRow{Counter: name, From: 1795255260000, Hits: 8})
		e.add(read.ExportRow{Counter: name + "x", From: 1795255200000, Hits: 9})
		rows, err := csv.NewReader(strings.NewReader(string(e.text))).ReadAll()
		require.NoError(t, err, "%q", e.text)
		require.Equal(t, [][]string{
			{name, "2026-11-21T10:00:00Z", "2026-11-21T10:01:00Z", "7"},
			{name, "2026-11-21T10:01:00Z", "2026-11-21T10:02:00Z", "8"},
			{name + "x", "2026-11-21T10:00:00Z", "2026-11-21T10:01:00Z", "9"},
		}, rows)
	})
}
