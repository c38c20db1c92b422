package query

import (
	"net/http"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
)

// The document is one that others can read: clients are generated from it, and
// the examples are of the types that it describes.
func TestOpenAPIIsValid(t *testing.T) {
	for _, tokens := range []string{"", "secret"} {
		s, _ := onFake(t)
		if tokens != "" {
			if err := s.tokens.UnmarshalText([]byte(tokens)); err != nil {
				t.Fatal(err)
			}
		}
		document, err := openapi3.NewLoader().LoadFromData(readAll(t, ask1(s.handler(), http.MethodGet, "/openapi.json", "")))
		if err != nil {
			t.Fatal(err)
		}
		if err := document.Validate(t.Context(), openapi3.EnableExamplesValidation()); err != nil {
			t.Errorf("with tokens %q: %v", tokens, err)
		}
	}
}
