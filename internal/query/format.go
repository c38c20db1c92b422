package query

import (
	"mime"
	"strconv"
	"strings"
)

// formatTypes are the content types of the formats of a series.
var formatTypes = map[string]string{
	"json": "application/json",
	"csv":  "text/csv; charset=utf-8",
	"svg":  "image/svg+xml",
}

const formatNames = "json, csv or svg"

// view is how a series is to be shown.
type view struct {
	Format        string
	Width, Height int // pixels of a chart
}

func (v view) chart() bool { return v.Format == "svg" }

// view reads the format, from the parameter or else from Accept, and the size.
func (p *seriesParams) view() (view, *inputError) {
	v := view{Format: p.Format}
	if v.Format == "" {
		v.Format = accepted(p.accept)
	}
	if v.Format == "png" {
		return view{}, badInput("format", "charts are not drawn as PNG any more: ask for svg, which browsers show and programs convert")
	}
	if _, ok := formatTypes[v.Format]; !ok {
		return view{}, badInput("format", "%s is not a format: allowed are %s", excerpt(v.Format), formatNames)
	}
	if !v.chart() && p.Width+p.Height != "" {
		return view{}, badInput("width", "only a chart has a width and a height: allowed with the format svg")
	}
	var err *inputError
	if v.Width, err = pixels("width", p.Width, 200, 800, 2000); err != nil {
		return view{}, err
	}
	v.Height, err = pixels("height", p.Height, 100, 300, 1200)
	return v, err
}

func pixels(param, text string, least, normal, most int) (int, *inputError) {
	if text == "" {
		return normal, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return 0, badInput(param, "%s is not a size: allowed are %d to %d pixels", excerpt(text), least, most)
	}
	return n, nil
}

// accepted is the format that an Accept header wants most, the first of equals;
// JSON where it wants none of ours.
func accepted(header string) string {
	best, bestQ := "json", 0.0
	for part := range strings.SplitSeq(header, ",") {
		wanted, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		q := 1.0
		if text, ok := params["q"]; ok {
			if q, err = strconv.ParseFloat(text, 64); err != nil {
				continue
			}
		}
		format := ""
		switch wanted {
		case "application/json", "application/*", "*/*":
			format = "json"
		case "text/csv":
			format = "csv"
		case "image/svg+xml", "image/*":
			format = "svg"
		}
		if format != "" && q > bestQ {
			best, bestQ = format, q
		}
	}
	return best
}
