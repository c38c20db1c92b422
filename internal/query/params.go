package query

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// strictParams refuses query strings that huma would read as something else: huma
// ignores parameters that it does not know, pairs with broken escapes, and the second
// value of a parameter that takes one.
func strictParams(api huma.API) func(huma.Context, func(huma.Context)) {
	return func(ctx huma.Context, next func(huma.Context)) {
		u := ctx.URL()
		if err := checkParams(u.RawQuery, ctx.Operation()); err != nil {
			// An error here means that the answer could not be written: the client is gone.
			_ = huma.WriteErr(api, ctx, http.StatusBadRequest, "", err)
			return
		}
		next(ctx)
	}
}

func checkParams(rawQuery string, op *huma.Operation) error {
	values, err := url.ParseQuery(rawQuery)
	if err != nil {
		return &huma.ErrorDetail{Location: "query", Message: fmt.Sprintf("the query string cannot be read: %v: write name=value pairs joined by &, other bytes as %%XX", err)}
	}
	known := make(map[string]*huma.Param)
	var names []string
	for _, p := range op.Parameters {
		if p.In == "query" {
			known[p.Name] = p
			names = append(names, p.Name)
		}
	}
	for name, given := range values {
		p := known[name]
		switch {
		case p == nil && len(names) == 0:
			return &huma.ErrorDetail{Location: "query", Message: fmt.Sprintf("unknown parameter %s: %s %s takes none", excerpt(name), op.Method, op.Path)}
		case p == nil:
			slices.Sort(names)
			return &huma.ErrorDetail{Location: "query", Message: fmt.Sprintf("unknown parameter %s: allowed are %s", excerpt(name), strings.Join(names, ", "))}
		case p.Schema.Type != huma.TypeArray && len(given) > 1:
			return &huma.ErrorDetail{Location: "query." + name, Message: fmt.Sprintf("it is given %d times: once is allowed", len(given))}
		}
	}
	return nil
}

// What parameters take, for the errors about them.
const (
	durationHint = "a duration, such as 1m"
	keyHint      = "a counter"
	momentHint   = "an RFC 3339 time or Unix milliseconds"
	nameHint     = "the name of a counter, or the beginning of one"
	pixelsHint   = "a number of pixels"
	windowHint   = "a duration such as 90s, 15m, 24h, 7d or 1w"
)

// Every Resolve method reads the query string again, after huma, with repeated and
// resolveSingles. It checks nothing else: the find functions check what values say,
// whether they come from a query string or from a body.

// repeated returns every value of a parameter that may repeat, including empty ones, with
// commas untouched. huma drops all values if the first one is empty.
func repeated(ctx huma.Context, name string) []string {
	u := ctx.URL()
	return u.Query()[name]
}

// singleParam is a parameter that is given at most once, and not empty.
type singleParam struct {
	name, allowed string
	into          *string
}

// resolveSingles sets parameters. It reports only the first one that is given empty. huma
// would treat an empty parameter as a missing one.
func resolveSingles(ctx huma.Context, params ...singleParam) []error {
	u := ctx.URL()
	query := u.Query()
	for _, p := range params {
		values, given := query[p.name]
		if !given {
			continue
		}
		if values[0] == "" {
			return []error{&huma.ErrorDetail{Location: "query." + p.name, Message: "it is empty: allowed is " + p.allowed}}
		}
		*p.into = values[0]
	}
	return nil
}
