package api

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/hit"
	"tallyroll/internal/platform/human"
	"tallyroll/internal/web"
)

// knownParams are the query parameters of an operation. Others are refused, because they may be mistyped.
type knownParams struct {
	operation string          // as errors name it
	repeats   map[string]bool // by name: whether it may be given several times
}

func KnownParamsOf(op *huma.Operation) *knownParams {
	out := &knownParams{operation: op.Method + " " + op.Path, repeats: make(map[string]bool)}
	for _, p := range op.Parameters {
		if p.In == web.InQuery {
			out.repeats[p.Name] = p.Schema.Type == huma.TypeArray
		}
	}
	return out
}

// Parse reads a query string. Its errors are for the client.
func (k *knownParams) Parse(rawQuery string) (url.Values, error) {
	values, err := url.ParseQuery(rawQuery)
	if err != nil {
		return nil, queryProblem("", fmt.Sprintf("the query string cannot be read: %v: write name=value pairs joined "+
			"by &, other bytes as %%XX", err))
	}
	for name, given := range values {
		if repeats, ok := k.lookup(name); !ok || !repeats && len(given) > 1 {
			return nil, k.refuse(values)
		}
	}
	return values, nil
}

// refuse is the problem of the first bad value by name.
func (k *knownParams) refuse(values url.Values) error {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		repeats, ok := k.lookup(name)
		switch {
		case !ok && len(k.repeats) == 0:
			return queryProblem("", fmt.Sprintf("unknown parameter %s: %s takes none", web.Excerpt(name), k.operation))
		case !ok:
			return queryProblem("", fmt.Sprintf("unknown parameter %s: must be one of %s", web.Excerpt(name),
				strings.Join(slices.Sorted(maps.Keys(k.repeats)), ", ")))
		case !repeats && len(values[name]) > 1:
			return queryProblem(name, fmt.Sprintf("given %d times: must be given once", len(values[name])))
		}
	}
	return nil
}

// HeaderParam begins the names of parameters that are request headers; AnyHeader stands for all of them.
const HeaderParam, AnyHeader = "header.", "header.NAME"

func (k *knownParams) lookup(name string) (repeats, ok bool) {
	if strings.HasPrefix(name, HeaderParam) && len(name) > len(HeaderParam) {
		name = AnyHeader
	}
	repeats, ok = k.repeats[name]
	return repeats, ok
}

// WindowHint is what a window can be.
const WindowHint = "a duration such as 90s, 15m, 24h, 7d or 1w"

// hints are the short forms that tags can have of what many parameters take.
var hints = map[string]string{
	"duration": "a duration, such as 1m",
	"name":     "the name of a counter, or the beginning of one",
	"window":   WindowHint,
}

// param is a field of a struct of parameters that a request sets. The tag query or header has its name, by
// which huma describes it, too; the tag headers has what the names of any number of parameters begin with.
// The tag empty has the name of a parameter that may be empty: the field, a bool, tells that from a missing
// one. Values are only taken, not checked: an operation may have them from a body, too.
type param struct {
	in, name string
	index    []int
	// hint is what a parameter of the query string can be, for the error if it is empty: that is a slip and does
	// not mean a missing one. The tag hint has it, or the type's method Hint.
	hint string
	// emptyWith is the parameter with which this one may be empty, or itself if it may be so with any: from the
	// tag of that name.
	emptyWith string
}

type params []param

const inHeader, inHeaders, ifEmpty = "header", "headers", "empty"

// paramsOf finds the fields of a struct, those of embedded structs included. That takes longer than reading a
// request, so it is done once for an operation.
func paramsOf(t reflect.Type) (out params) {
	for _, f := range reflect.VisibleFields(t) {
		for _, in := range []string{web.InQuery, inHeader, inHeaders, ifEmpty} {
			tag, ok := f.Tag.Lookup(in)
			if !ok {
				continue
			}
			p := param{in: in, index: f.Index, hint: f.Tag.Get("hint"), emptyWith: f.Tag.Get("emptyWith")}
			p.name, _, _ = strings.Cut(tag, ",")
			p.hint = cmp.Or(hints[p.hint], p.hint)
			if typed, ok := reflect.Zero(f.Type).Interface().(interface{ Hint() string }); ok {
				p.hint = typed.Hint()
			}
			if in == web.InQuery && f.Type.Kind() == reflect.String && p.hint == "" {
				panic(fmt.Sprintf("%v.%s: the tag hint is missing", t, f.Name))
			}
			out = append(out, p)
		}
	}
	return out
}

// read sets the fields of a struct.
func (ps params) read(into reflect.Value, query url.Values, header http.Header) error {
	for i := range ps {
		p := &ps[i]
		values, given := query[p.name]
		switch {
		case p.in == inHeader:
			into.FieldByIndex(p.index).SetString(header.Get(p.name))
		case p.in == inHeaders:
			found, err := withPrefix(query, p.name)
			if err != nil {
				return err
			}
			into.FieldByIndex(p.index).Set(reflect.ValueOf(found))
		case p.in == ifEmpty:
			into.FieldByIndex(p.index).SetBool(given && values[0] == "")
		case !given:
		case p.hint == "":
			*into.FieldByIndex(p.index).Addr().Interface().(*[]string) = values
		case values[0] != "":
			into.FieldByIndex(p.index).SetString(values[0])
		case p.emptyWith == "" || p.emptyWith != p.name && query.Get(p.emptyWith) == "":
			return queryProblem(p.name, "empty: must be "+p.hint)
		}
	}
	return nil
}

// withPrefix are the headers given as parameters, by their names after the prefix.
func withPrefix(query url.Values, prefix string) (out map[string]string, err error) {
	for name, values := range query {
		header, ok := strings.CutPrefix(name, prefix)
		switch {
		case !ok:
			continue
		case values[0] == "":
			return nil, queryProblem(name, "empty: must be the value of a header")
		case out == nil:
			out = make(map[string]string)
		}
		out[header] = values[0]
	}
	return out, nil
}

func queryProblem(param, message string) *web.Problem {
	location := web.InQuery
	if param != "" {
		location += "." + param
	}
	return web.NewProblem(http.StatusBadRequest, "", web.ProblemDetail{Location: location, Message: message})
}

// NoParams are those of an operation that takes none.
type NoParams struct{}

// CheckKey refuses a name that no counter can have.
func CheckKey(param, key string) error {
	var wrong string
	switch err := hit.CheckName([]byte(key)); {
	case err == nil:
		return nil
	case key == "":
		wrong = "a counter without a name"
	case errors.Is(err, hit.ErrNameLength):
		wrong = fmt.Sprintf("a counter's name of %d bytes", len(key))
	case errors.Is(err, hit.ErrNameUTF8):
		wrong = web.Excerpt(key) + " is not UTF-8"
	default:
		wrong = web.Excerpt(key) + " has a control character"
	}
	return web.BadInput(param, "%s: must be 1 to %d bytes of UTF-8 without control characters", wrong, hit.MaxName)
}

// maxDurationText is longer than the text of any duration up to ten years.
const maxDurationText = 16

// ParseDuration reads a window or a step.
func ParseDuration(param, text string) (time.Duration, error) {
	if len(text) > maxDurationText {
		text = text[:maxDurationText] + "…" // no duration: the error is to say so, in a line
	}
	d, err := human.ParseDuration(text)
	if err != nil {
		return 0, web.BadInput(param, "%v", err)
	}
	return d, nil
}

// Number is a whole number as a request gives it, not yet parsed; "" if absent.
type Number string

// UnmarshalJSON keeps the value as written, so that only Parse refuses it, with the field's name.
func (t *Number) UnmarshalJSON(data []byte) error {
	*t = Number(data)
	if string(data) == "null" {
		*t = ""
	}
	return nil
}

// MarshalJSON writes the number of an example.
func (t Number) MarshalJSON() ([]byte, error) { return []byte(t), nil }

// Schema describes the number that the text must be.
func (Number) Schema(huma.Registry) *huma.Schema { return &huma.Schema{Type: huma.TypeInteger} }

// Parse returns the number, or the default. param is its name in the request.
func (t Number) Parse(param string, byDefault, least, most int64) (int64, error) {
	if t == "" {
		return byDefault, nil
	}
	n, err := strconv.ParseInt(string(t), 10, 64)
	if err != nil || n < least || n > most {
		return 0, web.BadInput(param, "%s: must be a whole number from %d to %d", web.Excerpt(string(t)), least, most)
	}
	return n, nil
}

// Moment is a time as a request gives it, not yet parsed: RFC 3339 text, which may be a date without a time,
// Unix milliseconds, or a duration before now such as -7d; "" if absent.
type Moment string

// UnmarshalJSON keeps a string's text, and anything else as written, so that only Milli refuses it.
func (m *Moment) UnmarshalJSON(data []byte) error {
	var text string
	switch {
	case string(data) == "null":
		*m = ""
	case json.Unmarshal(data, &text) == nil && text != "":
		*m = Moment(text)
	default:
		*m = Moment(data)
	}
	return nil
}

// Hint is what a moment can be.
func (Moment) Hint() string {
	return "an RFC 3339 time, a date, Unix milliseconds, or a time before now such as -7d"
}

// Schema describes both forms of a body's field. In a query, which has only text, it is the first.
func (Moment) Schema(huma.Registry) *huma.Schema {
	s := &huma.Schema{OneOf: []*huma.Schema{
		{
			Type: huma.TypeString, Description: "An RFC 3339 time, a date, Unix milliseconds in digits, or a time " +
				"before now such as -7d.",
			Examples: []any{"2026-11-21T10:00:00Z", "1795255200000", "-7d"},
		},
		{Type: huma.TypeInteger, Format: "int64", Description: "Unix milliseconds.", Examples: []any{1795255200000}},
	}}
	s.PrecomputeMessages()
	return s
}

// IsDate reports whether the moment is a date without a time.
func (m Moment) IsDate() bool {
	_, err := time.Parse(time.DateOnly, string(m))
	return err == nil
}

// Milli is the moment in Unix milliseconds; a negative number is relative to now. param is what the request
// calls it. start returns when a date begins, of which it gets the midnight in UTC.
func (m Moment) Milli(param string, start func(date time.Time) int64) (int64, error) {
	if ago, ok := strings.CutPrefix(string(m), "-"); ok {
		if length, err := human.ParseDuration(ago); err == nil {
			return -length.Milliseconds(), nil
		}
	}
	n, err := strconv.ParseInt(string(m), 10, 64)
	if err != nil {
		n, err = hit.ParseTime(restorePlus(string(m)))
	}
	if date, notDate := time.Parse(time.DateOnly, string(m)); notDate == nil {
		n, err = start(date), nil
	}
	if err != nil || n < 0 || n > hit.MaxTime {
		return 0, web.BadInput(param, "%s is not a time: must be RFC 3339, such as 2026-11-21T10:00:00Z, a date, "+
			"such as 2026-11-21, Unix milliseconds, such as 1795255200000, from 1970 to 9999, or a time before now, "+
			"such as -7d", web.Excerpt(string(m)))
	}
	return n, nil
}

// restorePlus restores the + of an offset such as +01:00, a space in a query string unless written as %2B.
func restorePlus(s string) string {
	if i := len(s) - len("+01:00"); i > 0 && s[i] == ' ' {
		return s[:i] + "+" + s[i+1:]
	}
	return s
}
