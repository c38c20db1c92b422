package answer

import (
	"mime"
	"slices"
	"strconv"
	"strings"

	"tallyroll/internal/web"
)

// Format is a form in which an answer can be asked for.
type Format struct{ Name, ContentType string }

var (
	JSON   = Format{"json", "application/json"}
	CSV    = Format{"csv", "text/csv; charset=utf-8"}
	NDJSON = Format{"ndjson", "application/x-ndjson"}
)

// Table is an answer that is JSON or, with a row per step, counter or group, CSV.
type Table interface {
	JSON() any
	CSV() []byte
}

// FormatParams choose the format of a Table. The types of parameters embed it.
type FormatParams struct {
	Format string `query:"format" hint:"json or csv" doc:"json or csv; it takes precedence over the header Accept. Default: json." example:"csv"`

	Accept string `header:"Accept" hidden:"true"`
}

// Choose returns JSON or CSV. Its error is for the client.
func (p *FormatParams) Choose() (Format, error) { return chooseFormat(p.Format, p.Accept, JSON, CSV) }

// chooseFormat returns the format that a request names, or else the one that its header Accept prefers, the
// first of equals; else the first of all.
func chooseFormat(name, accept string, formats ...Format) (Format, error) {
	names := make([]string, len(formats))
	for i, f := range formats {
		names[i] = f.Name
	}
	if i := slices.Index(names, name); i >= 0 {
		return formats[i], nil
	}
	if name != "" {
		return Format{}, web.BadInput("format", "%s is not a format: must be %s", web.Excerpt(name),
			strings.Join(names, " or "))
	}
	best, bestQ := formats[0], 0.0
	for part := range strings.SplitSeq(accept, ",") {
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
		i := slices.IndexFunc(formats, func(f Format) bool { return f.isWanted(wanted) })
		if i >= 0 && q > bestQ {
			best, bestQ = formats[i], q
		}
	}
	return best, nil
}

func (f Format) isWanted(mediaType string) bool {
	own, _, _ := strings.Cut(f.ContentType, ";")
	major, minor, _ := strings.Cut(own, "/")
	return slices.Contains([]string{own, major + "/" + strings.TrimPrefix(minor, "x-"), major + "/*", "*/*"}, mediaType)
}
