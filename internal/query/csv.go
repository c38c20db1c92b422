package query

import (
	"bytes"
	"encoding/csv"
	"strconv"
	"strings"
	"time"

	"tallyroll/internal/window"
)

// seriesCSV returns a table with a row per step and a column per counter, then two columns per counter for the
// bounds if the series have some, and last whether no hit of the step is known to be missing. All series have the
// same steps. A field is empty if the step says nothing yet or still goes on, so the sum of a
// column has only finished steps. Rows with only empty fields are left out.
func seriesCSV(keys []string, series []window.Series) []byte {
	var out bytes.Buffer
	w := csv.NewWriter(&out)
	bounded := series[0].Bounds != nil
	row := []string{"time"}
	for _, key := range keys {
		row = append(row, columnName(key))
	}
	if bounded {
		for _, key := range keys {
			row = append(row, columnName(key)+" lower", columnName(key)+" upper")
		}
	}
	row = append(row, "complete")
	_ = w.Write(row) // a buffer takes everything
	begun, zone := begunOf(series), zoneOf(series[0])
	for i := begun; i < len(series[0].Counts); i++ {
		clear(row)
		row[0] = timeOf(series[0].Start(i)).In(zone).Format(time.RFC3339)
		counted, complete := false, true
		for j, f := range series {
			complete = complete && i >= f.CompleteFrom()
			if i >= f.Finished() {
				continue
			}
			row[1+j], counted = strconv.FormatInt(f.Counts[i], 10), true
			if bounded {
				at := 1 + len(keys) + 2*j
				row[at], row[at+1] = strconv.FormatInt(f.Bounds[i][0], 10), strconv.FormatInt(f.Bounds[i][1], 10)
			}
		}
		row[len(row)-1] = strconv.FormatBool(complete)
		if counted {
			_ = w.Write(row)
		}
	}
	w.Flush()
	return out.Bytes()
}

// zoneOf is the zone in which the steps of a series lie.
func zoneOf(f window.Series) *time.Location {
	if steps, ok := f.Steps.(calendarSteps); ok {
		return steps.zone
	}
	return time.UTC
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
