package query

import (
	"net/http"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"tallyroll/tests/asking"
)

// The document is one that others can read: clients are generated from it (tests/clients
// does), and the examples are of the types that it describes.
func TestOpenAPIIsValid(t *testing.T) {
	t.Parallel()
	for target, version := range map[string]string{"/openapi.json": "3.1.", "/openapi-3.0.json": "3.0."} {
		for _, tokens := range []string{"", "secret"} {
			validDocument(t, target, version, tokens)
		}
	}
}

func validDocument(t *testing.T, target, version, tokens string) {
	t.Helper()
	s, _ := onFake(t)
	if tokens != "" {
		useTokens(t, s, tokens)
	}
	document, err := openapi3.NewLoader().LoadFromData(asking.ReadAll(t, asking.Ask(s.handler(), http.MethodGet, target, "")))
	if err != nil {
		t.Fatal(err)
	}
	if err := document.Validate(t.Context(), openapi3.EnableExamplesValidation()); err != nil || !strings.HasPrefix(document.OpenAPI, version) {
		t.Errorf("%s with tokens %q: version %s: %v", target, tokens, document.OpenAPI, err)
	}
}
