package collect

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
)

// The documents are such that others can read them, and have what pages call.
func TestPagesAreDescribed(t *testing.T) {
	t.Parallel()
	h := offline(t, pageVariables...).handler()
	for _, target := range []string{"/openapi.json", "/openapi-3.0.json"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, target, nil))
		document, err := openapi3.NewLoader().LoadFromData(w.Body.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		err = document.Validate(t.Context(), openapi3.EnableExamplesValidation())
		if err != nil {
			t.Errorf("%s: %v", target, err)
		}
		if beacon, image := document.Paths.Find(beaconPath), document.Paths.Find(gifPath); beacon == nil || beacon.Post == nil || image == nil || image.Get == nil {
			t.Errorf("%s has not what pages call", target)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/docs", nil))
	if w.Code != http.StatusOK {
		t.Errorf("/docs: %d %s", w.Code, w.Body)
	}
}
