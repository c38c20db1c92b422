package collect

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"
)

// The document is such that others can read it, and has what pages call.
func TestPagesAreDescribed(t *testing.T) {
	t.Parallel()
	h := offline(t, pageVariables...).handler()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/openapi.json", nil))
	document, err := openapi3.NewLoader().LoadFromData(w.Body.Bytes())
	require.NoError(t, err)
	err = document.Validate(t.Context(), openapi3.EnableExamplesValidation())
	if err != nil {
		t.Error(err)
	}
	if beacon, image := document.Paths.Find(beaconPath), document.Paths.Find(gifPath); beacon == nil || beacon.Post == nil || image == nil || image.Get == nil {
		t.Error("it has not what pages call")
	}
	w = httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/docs", nil))
	require.EqualValues(t, http.StatusOK, w.Code, w.Body)
}
