package query

import (
	"bytes"
	"encoding/csv"
	"strconv"
	"time"

	"tallyroll/internal/window"
)

// seriesCSV is a table with a row for each step and a column for each counter.
// All series have the same steps.
func seriesCSV(keys []string, found []window.Series) []byte {
	var out bytes.Buffer
	w := csv.NewWriter(&out)
	row := append([]string{"time"}, keys...)
	_ = w.Write(row) // a buffer takes everything
	for i := range found[0].Counts {
		row[0] = timeOf(found[0].Range.From + int64(i)*found[0].Step.Milliseconds()).Format(time.RFC3339)
		for j, f := range found {
			row[j+1] = strconv.FormatInt(f.Counts[i], 10)
		}
		_ = w.Write(row)
	}
	w.Flush()
	return out.Bytes()
}
