package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
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
		return nil, queryProblem("", fmt.Sprintf("the query string cannot be read: %v: write name=value pairs joined by &, other bytes as %%XX", err))
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
			return queryProblem("", fmt.Sprintf("unknown parameter %s: must be one of %s", web.Excerpt(name), strings.Join(slices.Sorted(maps.Keys(k.repeats)), ", ")))
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

const (
	DurationHint = "a duration, such as 1m"
	MomentHint   = "an RFC 3339 time, Unix milliseconds, or a time before now such as -7d"
	NameHint     = "the name of a counter, or the beginning of one"
	WindowHint   = "a duration such as 90s, 15m, 24h, 7d or 1w"
)

// Request is a request's parameters. The Read methods only take it apart; the find functions check the
// values, whether they come from a query string or from a body.
type Request struct {
	Query  url.Values
	Header http.Header
}

// Single is a parameter that is given at most once, and not empty.
type Single struct {
	name, allowed string
	into          *string
}

// Text returns a Single whose value goes to into.
func Text(name, allowed string, into *string) Single { return Single{name, allowed, into} }

// Singles sets parameters. An empty one is an error, because it is a slip and does not mean a missing one.
func (g Request) Singles(params ...Single) error {
	for _, p := range params {
		values, ok := g.Query[p.name]
		if !ok {
			continue
		}
		if values[0] == "" {
			return queryProblem(p.name, "empty: must be "+p.allowed)
		}
		*p.into = values[0]
	}
	return nil
}

// Headers are the headers given as parameters, by name.
func (g Request) Headers() (map[string]string, error) {
	var out map[string]string
	for name, values := range g.Query {
		header, ok := strings.CutPrefix(name, HeaderParam)
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

func (*NoParams) Read(Request) error { return nil }

// CheckKey refuses a name that no counter can have.
func CheckKey(param, key string) error {
	return CheckName(param, key, "a counter without a name", "a counter's name")
}

// CheckName refuses what hit.CheckName does. empty is the error for an empty name, what the word for a name.
func CheckName(param, name, empty, what string) error {
	var wrong string
	switch err := hit.CheckName([]byte(name)); {
	case err == nil:
		return nil
	case name == "":
		wrong = empty
	case errors.Is(err, hit.ErrNameLength):
		wrong = fmt.Sprintf("%s of %d bytes", what, len(name))
	case errors.Is(err, hit.ErrNameUTF8):
		wrong = web.Excerpt(name) + " is not UTF-8"
	default:
		wrong = web.Excerpt(name) + " has a control character"
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
		return 0, web.BadInput(param, "%s: must be %s", web.Excerpt(string(t)), NumberHint(least, most))
	}
	return n, nil
}

func NumberHint(least, most int64) string {
	return fmt.Sprintf("a whole number from %d to %d", least, most)
}

// Moment is a time as a request gives it, not yet parsed: RFC 3339 text, Unix milliseconds, or a duration
// before now such as -7d; "" if absent.
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

// Schema describes both forms of a body's field. In a query, which has only text, it is the first.
func (Moment) Schema(huma.Registry) *huma.Schema {
	s := &huma.Schema{OneOf: []*huma.Schema{
		{
			Type: huma.TypeString, Description: "An RFC 3339 time, Unix milliseconds in digits, or a time before now such as -7d.",
			Examples: []any{"2026-11-21T10:00:00Z", "1795255200000", "-7d"},
		},
		{Type: huma.TypeInteger, Format: "int64", Description: "Unix milliseconds.", Examples: []any{1795255200000}},
	}}
	s.PrecomputeMessages()
	return s
}

// Milli is the moment in Unix milliseconds; a negative number is relative to now. param is what the request
// calls it.
func (m Moment) Milli(param string) (int64, error) {
	if ago, ok := strings.CutPrefix(string(m), "-"); ok {
		if length, err := human.ParseDuration(ago); err == nil {
			return -length.Milliseconds(), nil
		}
	}
	n, err := strconv.ParseInt(string(m), 10, 64)
	if err != nil {
		n, err = hit.ParseTime(restorePlus(string(m)))
	}
	if err != nil || n < 0 || n > hit.MaxTime {
		return 0, web.BadInput(param, "%s is not a time: must be RFC 3339, such as 2026-11-21T10:00:00Z, Unix milliseconds, such as 1795255200000, from 1970 to 9999, or a time before now, such as -7d", web.Excerpt(string(m)))
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
