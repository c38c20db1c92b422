package query

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/query/limitapi"
	"tallyroll/tests/apitest"
)

// The document is one that others can read, whether or not tokens are needed: clients are generated from it
// (tests/clients does). All is described, and examples are of the types that it describes.
func TestDocumentDescribesEverything(t *testing.T) {
	t.Parallel()
	for _, tokens := range []string{"", "secret"} {
		s := serveFake(t)
		setTokens(t, s.service, tokens)
		data := apitest.ReadBody(t, apitest.Send(s.handler(), http.MethodGet, "/openapi.json", ""))
		doc, err := openapi3.NewLoader().LoadFromData(data)
		require.NoError(t, err)
		require.NoError(t, doc.Validate(t.Context(), openapi3.EnableExamplesValidation()))
		require.True(t, strings.HasPrefix(doc.OpenAPI, "3.1."), doc.OpenAPI)
		require.NotEmpty(t, doc.Info.Description)
		for _, want := range []string{
			"/v1/total", "/v1/uniques", "/v1/series", "/v1/top", "/v1/counters", "/v1/about", "/v1/export", "/v1/live", "/v1/streams", "/v1/rejects", "/v1/watch", "/probe",
			"/v1/take", "/v1/return", "/v1/limit", "/v1/limits", "/v1/authz", "/v1/authz/{limit}", "/healthz", "/readyz", "/readyz/answers", "/readyz/takes", "/metrics",
		} {
			require.NotNil(t, doc.Paths.Find(want), want)
		}
		for path, item := range doc.Paths.Map() {
			if limitapi.IsAuthz(path) {
				methods := slices.Sorted(maps.Keys(item.Operations()))
				require.Equal(t, []string{"DELETE", "GET", "OPTIONS", "PATCH", "POST", "PUT"}, methods, "a proxy asks with the method of the request")
			}
			for method, op := range item.Operations() {
				checkDescribed(t, method, path, op, tokens != "")
			}
		}
		var bounds []string // nothing else may be null
		for name, s := range doc.Components.Schemas {
			for field, p := range s.Value.Properties {
				if p.Value.Description == "" || len(p.Value.Examples) == 0 && p.Ref == "" && (p.Value.Items == nil || p.Value.Items.Ref == "") {
					t.Errorf("%s.%s has no description or no example", name, field)
				}
				if p.Value.Type.IncludesNull() {
					bounds = append(bounds, name+"."+field)
				}
			}
		}
		slices.Sort(bounds)
		require.Equal(t, []string{
			"Change.as_of", "Change.lower", "Change.total", "Change.upper", "Standing.as_of", "Standing.lower", "Standing.total", "Standing.upper",
			"SumGroup.upper", "TopAnswer.floor", "TopTotal.upper", "Total.upper", "Unique.upper",
		}, bounds)
		require.Equal(t, len(bounds), strings.Count(string(data), `"null"`))
	}
}

func checkDescribed(t *testing.T, method, path string, op *openapi3.Operation, tokens bool) {
	t.Helper()
	at := method + " " + path
	require.Len(t, op.Tags, 1, at)
	if op.OperationID == "" || op.Summary == "" || op.Description == "" {
		t.Errorf("%s is not described", at)
	}
	for _, p := range op.Parameters {
		if p.Value.Description == "" || len(p.Value.Schema.Value.Examples) == 0 {
			t.Errorf("%s: parameter %s has no description or example", at, p.Value.Name)
		}
		if len(p.Value.Schema.Value.OneOf) > 0 {
			t.Errorf("%s: parameter %s has several types, which generated clients cannot set", at, p.Value.Name)
		}
	}
	if op.RequestBody != nil {
		require.NotNil(t, op.RequestBody.Value.Content["application/json"].Example, at)
	}
	responses := op.Responses.Map()
	for status, r := range responses {
		require.NotEmpty(t, *r.Value.Description, "%s: %s", at, status)
		for contentType, m := range r.Value.Content {
			require.NotNil(t, m.Example, "%s: %s as %s", at, status, contentType)
		}
	}
	if path != "/v1/take" && path != limitapi.ReturnPath && path != limitapi.SettlePath { // which have it for an id that was used for something else
		require.NotContains(t, responses, "422", at)
	}
	if path == "/v1/take" || strings.HasPrefix(path, limitapi.AuthzPath) {
		require.Contains(t, responses["200"].Value.Headers, "RateLimit", at)
		require.Contains(t, responses["200"].Value.Headers, "RateLimit-Policy", at)
	}
	require.NotContains(t, responses, "default", at)
	if !answersFromRedis(path) {
		return
	}
	needed := []string{"200", "400", "413", "500", "503"}
	if at == "DELETE "+limitapi.LimitPath {
		needed[0] = "204"
	}
	if slices.Contains([]string{"/v1/streams", "/v1/rejects", "/v1/watch"}, path) {
		needed = append(needed, "501")
	}
	for _, status := range needed {
		require.Contains(t, responses, status, at)
	}
	require.Equal(t, tokens, responses["401"] != nil, at)
	require.Equal(t, tokens, op.Security != nil && len(*op.Security) > 0, at)
}
