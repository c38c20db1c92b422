package query

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// strictParams refuses query strings that huma would read as something else: it
// passes over parameters that it does not know, over pairs with broken escapes,
// and over the second value of a parameter that takes one.
func strictParams(api huma.API) func(huma.Context, func(huma.Context)) {
	return func(ctx huma.Context, next func(huma.Context)) {
		u := ctx.URL()
		if err := checkParams(u.RawQuery, ctx.Operation()); err != nil {
			// An error here is one of writing: the client is gone.
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

// repeated is every value of a parameter that may repeat, empty ones included
// and commas untouched. huma drops them all where the first one is empty.
func repeated(ctx huma.Context, name string) []string {
	u := ctx.URL()
	return u.Query()[name]
}

// single is the value of a parameter, and an error where it is given empty:
// huma takes that for a parameter that is not there.
func single(ctx huma.Context, name, allowed string) (string, error) {
	u := ctx.URL()
	values := u.Query()[name]
	switch {
	case len(values) == 0:
		return "", nil
	case values[0] == "":
		return "", &huma.ErrorDetail{Location: "query." + name, Message: "it is empty: allowed is " + allowed}
	}
	return values[0], nil
}
