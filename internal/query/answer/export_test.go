package answer

import (
	"encoding/csv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/internal/window/read"
)

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
