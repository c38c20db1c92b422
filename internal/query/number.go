package query

import (
	"fmt"
	"strconv"

	"github.com/danielgtaylor/huma/v2"
)

// numberText is a whole number as a request gives it, not yet parsed. It is empty if the
// request gives none.
type numberText string

// UnmarshalJSON keeps the value as it is written, so that only one place refuses what is not a
// number, with the field's name.
func (t *numberText) UnmarshalJSON(data []byte) error {
	*t = numberText(data)
	if string(data) == "null" {
		*t = ""
	}
	return nil
}

// Schema describes the number that the text must be.
func (numberText) Schema(huma.Registry) *huma.Schema { return &huma.Schema{Type: huma.TypeInteger} }

// parse is the number, or the default one. param is what the request calls it.
func (t numberText) parse(param string, byDefault, least, most int64) (int64, error) {
	if t == "" {
		return byDefault, nil
	}
	n, err := strconv.ParseInt(string(t), 10, 64)
	if err != nil || n < least || n > most {
		return 0, badInput(param, "%s: allowed is %s", excerpt(string(t)), numberHint(least, most))
	}
	return n, nil
}

func numberHint(least, most int64) string {
	return fmt.Sprintf("a whole number from %d to %d", least, most)
}
