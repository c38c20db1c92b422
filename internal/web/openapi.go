package web

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"tallyroll/internal/boot"

	"github.com/danielgtaylor/huma/v2"
)

// Answers have empty lists and never null, so no schema says that a list may be null: clients
// generated from such schemas would have to check for it. huma keeps this choice in a
// variable of the package.
func init() { huma.DefaultArrayNullable = false }

// APIConfig is huma's configuration without its own pages: they load scripts
// from elsewhere, and its schema links would add a field to every answer.
func APIConfig(title, about string) huma.Config {
	config := huma.DefaultConfig(title, boot.Version())
	config.Info.Description = about
	config.OpenAPIPath, config.DocsPath, config.SchemasPath = "", "", ""
	config.CreateHooks = nil
	return config
}

// SuccessOnly describes the answer of an operation that succeeds.
func SuccessOnly(about string, example any) map[string]*huma.Response {
	return map[string]*huma.Response{"200": {
		Description: about,
		Content:     map[string]*huma.MediaType{"application/json": {Example: example}},
	}}
}

// TryoutKey is where an operation keeps its tryouts, for the docs page.
const TryoutKey = "tryout"

// Tryouts are requests that are answered when they are sent at about now.
type Tryouts func(now time.Time) []string

// Tryout is an operation's metadata for requests that can be sent at any time.
func Tryout(paths ...string) map[string]any {
	return TryoutAt(func(time.Time) []string { return paths })
}

// TryoutAt is an operation's metadata for requests that depend on the time.
func TryoutAt(t Tryouts) map[string]any { return map[string]any{TryoutKey: t} }

// OpenAPI30 is the document for tools that do not read 3.1. huma leaves in what
// 3.0 does not have: format says there that a text is binary.
func OpenAPI30(api *huma.OpenAPI) ([]byte, error) {
	text, err := api.Downgrade()
	if err != nil {
		return nil, err
	}
	var document any
	if err := json.Unmarshal(text, &document); err != nil {
		return nil, err
	}
	var clean func(any)
	clean = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			delete(v, "contentMediaType")
			for _, inner := range v {
				clean(inner)
			}
		case []any:
			for _, inner := range v {
				clean(inner)
			}
		}
	}
	clean(document)
	return json.Marshal(document)
}

// ServeOpenAPI serves the document that encode writes.
func ServeOpenAPI(encode func() ([]byte, error)) http.Handler {
	var document bytes.Buffer
	text, err := encode()
	if err == nil {
		err = json.Indent(&document, text, "", "  ")
	}
	if err != nil {
		panic(fmt.Errorf("encode the OpenAPI document: %w", err)) // our own types always encode
	}
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(document.Bytes()) // the client may be gone
	})
}
