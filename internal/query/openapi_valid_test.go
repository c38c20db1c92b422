package query

import (
	"net/http"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/asking"
)

// The document is one that others can read: clients are generated from it (tests/clients
// does), and the examples are of the types that it describes.
func TestOpenAPIIsValid(t *testing.T) {
	t.Parallel()
	for _, tokens := range []string{"", "secret"} {
		s, _ := onFake(t)
		if tokens != "" {
			useTokens(t, s, tokens)
		}
		document, err := openapi3.NewLoader().LoadFromData(asking.ReadAll(t, asking.Ask(s.handler(), http.MethodGet, "/openapi.json", "")))
		require.NoError(t, err)
		if err := document.Validate(t.Context(), openapi3.EnableExamplesValidation()); err != nil || !strings.HasPrefix(document.OpenAPI, "3.1.") {
			t.Errorf("with tokens %q: version %s: %v", tokens, document.OpenAPI, err)
		}
	}
}
