package query

import (
	"encoding/json"
	"net/http"

	"tallyroll/internal/limit/limitfile"
	"tallyroll/internal/platform/yamlfile"
	"tallyroll/internal/rules"
	watchform "tallyroll/internal/watch/form"
	"tallyroll/internal/web/access"
)

// schemas are the JSON Schemas of the files that people write for the programs, by name.
var schemas = map[string]func() yamlfile.Schema{
	"limits": limitfile.Schema, "rules": rules.Schema, "tokens": access.Schema, "watch": watchform.Schema,
}

// registerSchemas serves them to editors, which need no token:
//
//	# yaml-language-server: $schema=http://127.0.0.1:8080/schemas/limits.json
func registerSchemas(mux *http.ServeMux) {
	for name, schema := range schemas {
		mux.HandleFunc("GET /schemas/"+name+".json", func(w http.ResponseWriter, _ *http.Request) {
			out := schema()
			out["$schema"], out["title"] = "https://json-schema.org/draft/2020-12/schema", "Tallyroll: file of "+name
			w.Header().Set("Content-Type", "application/schema+json")
			encoder := json.NewEncoder(w)
			encoder.SetIndent("", "  ")
			_ = encoder.Encode(out) // the client may be gone
		})
	}
}
