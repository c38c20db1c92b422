package query

import (
	"fmt"
	"strconv"

	"github.com/danielgtaylor/huma/v2"
)

// count is a number of things as a request gives it, not yet read. Empty where
// the request gives none.
type count string

// UnmarshalJSON keeps the value as it is written, so that what is no number is
// refused in one place, with the field's name.
func (c *count) UnmarshalJSON(data []byte) error {
	if *c = count(data); *c == "null" {
		*c = ""
	}
	return nil
}

// Schema describes the number that it is to be.
func (count) Schema(huma.Registry) *huma.Schema { return &huma.Schema{Type: huma.TypeInteger} }

// read is the number, or the default one; param is what the request calls it.
func (c count) read(param string, byDefault, most int) (int, error) {
	if c == "" {
		return byDefault, nil
	}
	n, err := strconv.Atoi(string(c))
	if err != nil || n < 1 || n > most {
		return 0, badInput(param, "%s: allowed is %s", excerpt(string(c)), countHint(most))
	}
	return n, nil
}

func countHint(most int) string { return fmt.Sprintf("a whole number from 1 to %d", most) }

// singleParam is a parameter that is given at most once, and not empty.
type singleParam struct {
	name, allowed string
	into          *string
}

// readSingles reads parameters as single does.
func readSingles(ctx huma.Context, params ...singleParam) []error {
	for _, p := range params {
		text, err := single(ctx, p.name, p.allowed)
		if err != nil {
			return []error{err}
		}
		*p.into = text
	}
	return nil
}
