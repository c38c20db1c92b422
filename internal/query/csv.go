package query

import (
	"bytes"
	"encoding/csv"
	"strconv"
	"strings"
	"time"

	"tallyroll/internal/window"
)

// seriesCSV returns a table with a row per step and a column per counter. All series have the
// same steps. A field is empty if counting had not begun or still goes on, so the sum of a
// column has only finished steps. Rows with only empty fields are left out.
func seriesCSV(keys []string, series []window.Series) []byte {
	var out bytes.Buffer
	w := csv.NewWriter(&out)
	row := []string{"time"}
	for _, key := range keys {
		row = append(row, columnName(key))
	}
	_ = w.Write(row) // a buffer takes everything
	for i := range series[0].Counts {
		row[0] = timeOf(series[0].Start(i)).Format(time.RFC3339)
		counted := false
		for j, f := range series {
			row[j+1] = ""
			if i >= f.Begun() && i < f.Finished() {
				row[j+1], counted = strconv.FormatInt(f.Counts[i], 10), true
			}
		}
		if counted {
			_ = w.Write(row)
		}
	}
	w.Flush()
	return out.Bytes()
}

// columnName changes a counter's name so that no spreadsheet takes it for a formula. Names can
// come from strangers, such as the paths of an access log, and a formula can send the
// cells beside it elsewhere (OWASP ASVS 5.0, 1.2.10). Nothing is lost: the client gave the
// names, and the columns are in that order. Programs that need the unchanged names can use
// JSON.
func columnName(key string) string {
	if strings.ContainsRune("=+-@\uff1d\uff0b\uff0d\uff20", []rune(key)[0]) { // as wide characters, too
		return "'" + key
	}
	return key
}
