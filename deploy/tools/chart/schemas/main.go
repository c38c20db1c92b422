//go:build ignore

// Schemas prints the JSON Schemas of the files that programs read, by name. It is run in the repository's
// root, whose module has them.
package main

import (
	"encoding/json"
	"os"

	"tallyroll/internal/limit/limitfile"
	"tallyroll/internal/platform/yamlfile"
	"tallyroll/internal/rules"
	"tallyroll/internal/watch/form"
	"tallyroll/internal/web/access"
)

func main() {
	if err := json.NewEncoder(os.Stdout).Encode(map[string]yamlfile.Schema{
		"limits": limitfile.Schema(), "rules": rules.Schema(), "tokens": access.Schema(), "watch": form.Schema(),
	}); err != nil {
		panic(err)
	}
}
