package query

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/hit"
)

// moment is a time as a request gives it, not yet read: RFC 3339 text or Unix
// milliseconds. It is empty if the request gives none.
type moment string

// UnmarshalJSON keeps a string's text and anything else as it is written, so
// that what cannot be read is refused in one place, with the field's name.
func (m *moment) UnmarshalJSON(data []byte) error {
	var text string
	switch {
	case string(data) == "null":
		*m = ""
	case json.Unmarshal(data, &text) == nil && text != "":
		*m = moment(text)
	default:
		*m = moment(data)
	}
	return nil
}

// Schema describes both forms.
func (moment) Schema(huma.Registry) *huma.Schema {
	s := &huma.Schema{OneOf: []*huma.Schema{
		{Type: huma.TypeString, Description: "An RFC 3339 time, or Unix milliseconds in digits.", Examples: []any{"2026-11-21T10:00:00Z"}},
		{Type: huma.TypeInteger, Format: "int64", Description: "Unix milliseconds.", Examples: []any{1795255200000}},
	}}
	s.PrecomputeMessages()
	return s
}

// milli is the moment in Unix milliseconds; param is what the request calls it.
func (m moment) milli(param string) (int64, error) {
	n, err := strconv.ParseInt(string(m), 10, 64)
	if err != nil {
		n, err = hit.ParseTime(unspaced(string(m)))
	}
	if err != nil || n < 0 || n > hit.MaxTime {
		return 0, badInput(param, "%s is not a time: allowed is RFC 3339, such as 2026-11-21T10:00:00Z, or Unix milliseconds, such as 1795255200000, from 1970 to 9999", excerpt(string(m)))
	}
	return n, nil
}

// unspaced puts back the + of an offset such as +01:00, which a query string
// turns into a space if it was not written as %2B.
func unspaced(s string) string {
	if i := len(s) - len("+01:00"); i > 0 && s[i] == ' ' {
		return s[:i] + "+" + s[i+1:]
	}
	return s
}

// sinceOf is when counting began; the zero time, which answers leave out, if that is not known.
func sinceOf(milli int64) time.Time {
	if milli == 0 {
		return time.Time{}
	}
	return timeOf(milli)
}

var sinceExample = time.Date(2026, 10, 1, 8, 0, 0, 0, time.UTC)

// timeOf is a moment as answers tell it.
func timeOf(milli int64) time.Time { return time.UnixMilli(milli).UTC() }
