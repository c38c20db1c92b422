package query

import (
	"mime"
	"strconv"
	"strings"
	"tallyroll/internal/web"
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

// parseView parses the format, from the parameter or else from Accept, and the size.
func (p *seriesParams) parseView() (view, error) {
	v := view{Format: p.Format}
	if v.Format == "" {
		v.Format = wantedFormat(p.accept)
	}
	if v.Format == "png" {
		return view{}, web.BadInput("format", "charts are not drawn as PNG any more: ask for svg, which browsers show and programs convert")
	}
	if _, ok := formatTypes[v.Format]; !ok {
		return view{}, web.BadInput("format", "%s is not a format: allowed are %s", web.Excerpt(v.Format), formatNames)
	}
	if !v.chart() && p.Width+p.Height != "" {
		return view{}, web.BadInput("width", "only a chart has a width and a height: allowed with the format svg")
	}
	var err error
	v.Width, err = parsePixels("width", p.Width, 200, 800, 2000)
	if err != nil {
		return view{}, err
	}
	v.Height, err = parsePixels("height", p.Height, 100, 300, 1200)
	return v, err
}

func parsePixels(param, text string, least, byDefault, most int) (int, error) {
	if text == "" {
		return byDefault, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return 0, web.BadInput(param, "%s is not a size: allowed are %d to %d pixels", web.Excerpt(text), least, most)
	}
	return n, nil
}

// wantedFormat is the format that an Accept header wants most, the first of equals;
// JSON if it wants none of ours.
func wantedFormat(header string) string {
	best, bestQ := "json", 0.0
	for part := range strings.SplitSeq(header, ",") {
		wanted, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		q := 1.0
		if text, ok := params["q"]; ok {
			q, err = strconv.ParseFloat(text, 64)
			if err != nil {
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
