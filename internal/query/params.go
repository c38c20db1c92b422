package query

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// knownParams are the parameters that an operation takes in the query string. What it does not know, it refuses:
// a mistyped question must not be answered as if it were another one.
type knownParams struct {
	operation string          // as errors name it
	repeats   map[string]bool // by name: whether it may be given several times
}

func knownParamsOf(op *huma.Operation) *knownParams {
	out := &knownParams{operation: op.Method + " " + op.Path, repeats: make(map[string]bool)}
	for _, p := range op.Parameters {
		if p.In == inQuery {
			out.repeats[p.Name] = p.Schema.Type == huma.TypeArray
		}
	}
	return out
}

// headerParam begins the names of parameters that are the headers of a request, and anyHeader stands for all of them.
const headerParam, anyHeader = "header.", "header.NAME"

// knows reports whether the operation takes a parameter, and whether it may be given several times.
func (k *knownParams) knows(name string) (repeats, ok bool) {
	if strings.HasPrefix(name, headerParam) && len(name) > len(headerParam) {
		name = anyHeader
	}
	repeats, ok = k.repeats[name]
	return repeats, ok
}

// parse reads a query string. Its errors are for the client.
func (k *knownParams) parse(rawQuery string) (url.Values, error) {
	values, err := url.ParseQuery(rawQuery)
	if err != nil {
		return nil, queryProblem("", fmt.Sprintf("the query string cannot be read: %v: write name=value pairs joined by &, other bytes as %%XX", err))
	}
	for name, given := range values {
		if repeats, ok := k.knows(name); !ok || !repeats && len(given) > 1 {
			return nil, k.refuse(values)
		}
	}
	return values, nil
}

// refuse is the problem of values of which at least one is wrong: the first one by name.
func (k *knownParams) refuse(values url.Values) error {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		repeats, ok := k.knows(name)
		switch {
		case !ok && len(k.repeats) == 0:
			return queryProblem("", fmt.Sprintf("unknown parameter %s: %s takes none", excerpt(name), k.operation))
		case !ok:
			return queryProblem("", fmt.Sprintf("unknown parameter %s: allowed are %s", excerpt(name), strings.Join(slices.Sorted(maps.Keys(k.repeats)), ", ")))
		case !repeats && len(values[name]) > 1:
			return queryProblem(name, fmt.Sprintf("it is given %d times: once is allowed", len(values[name])))
		}
	}
	return nil
}

// queryProblem is a 400 about a parameter, or about the query string as a whole.
func queryProblem(param, message string) *problem {
	location := inQuery
	if param != "" {
		location += "." + param
	}
	return newProblem(http.StatusBadRequest, "", &huma.ErrorDetail{Location: location, Message: message})
}

// What parameters take, for the errors about them.
const (
	durationHint = "a duration, such as 1m"
	momentHint   = "an RFC 3339 time or Unix milliseconds"
	nameHint     = "the name of a counter, or the beginning of one"
	pixelsHint   = "a number of pixels"
	windowHint   = "a duration such as 90s, 15m, 24h, 7d or 1w"
)

// given is what a request gives as parameters. The read methods take it apart and check nothing else:
// the find functions check what values say, whether they come from a query string or from a body.
type given struct {
	query  url.Values
	header http.Header
}

// singleParam is a parameter that is given at most once, and not empty.
type singleParam struct {
	name, allowed string
	into          *string
}

// singles sets parameters. Its error is about the first one that is given empty, which is a slip
// and does not mean that it is missing.
func (g given) singles(params ...singleParam) error {
	for _, p := range params {
		values, ok := g.query[p.name]
		if !ok {
			continue
		}
		if values[0] == "" {
			return queryProblem(p.name, "it is empty: allowed is "+p.allowed)
		}
		*p.into = values[0]
	}
	return nil
}

// headers are the headers that are given as parameters, by their names.
func (g given) headers() (map[string]string, error) {
	var out map[string]string
	for name, values := range g.query {
		header, is := strings.CutPrefix(name, headerParam)
		switch {
		case !is:
			continue
		case values[0] == "":
			return nil, queryProblem(name, "it is empty: allowed is the value of a header")
		case out == nil:
			out = make(map[string]string)
		}
		out[header] = values[0]
	}
	return out, nil
}

// noParams are those of an operation that takes none.
type noParams struct{}

func (*noParams) read(given) error { return nil }
