package query

import (
	"bytes"
	"encoding/csv"
	"strconv"
	"strings"
	"time"

	"tallyroll/internal/window"
)

// seriesCSV is a table with a row for each step and a column for each counter.
// All series have the same steps. A field is empty if counting had not begun, or goes
// on: a table that is added up has finished steps only. Rows of empty fields are left out.
func seriesCSV(keys []string, found []window.Series) []byte {
	var out bytes.Buffer
	w := csv.NewWriter(&out)
	row := []string{"time"}
	for _, key := range keys {
		row = append(row, heading(key))
	}
	_ = w.Write(row) // a buffer takes everything
	for i := range found[0].Counts {
		row[0] = timeOf(found[0].Start(i)).Format(time.RFC3339)
		counted := false
		for j, f := range found {
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

// heading is a counter's name that no spreadsheet takes for a formula: names can
// come from strangers, such as the paths of an access log, and a formula can send
// away what stands beside it (OWASP ASVS 5.0, 1.2.10). Nothing is lost, for whoever
// asks has given the names, and columns are in their order. Programs that want
// them as they are have JSON.
func heading(key string) string {
	if strings.ContainsRune("=+-@\uff1d\uff0b\uff0d\uff20", []rune(key)[0]) { // as wide characters, too
		return "'" + key
	}
	return key
}
