// Package schema checks YAML files by their JSON Schemas, as editors do.
package schema

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/getkin/kin-openapi/openapi3"
	"go.yaml.in/yaml/v4"

	"tallyroll/internal/platform/yamlfile"
)

// Check returns an error if a file does not have the form of a schema.
func Check(schema yamlfile.Schema, file []byte) error {
	text, err := json.Marshal(schema)
	if err != nil {
		return err
	}
	var compiled openapi3.Schema
	if err := json.Unmarshal(text, &compiled); err != nil {
		return err
	}
	if len(compiled.Extensions) > 0 {
		return fmt.Errorf("the validator does not know %v", compiled.Extensions)
	}
	var document yaml.Node
	if err := yaml.Unmarshal(file, &document); err != nil {
		return err
	}
	return compiled.VisitJSON(value(document.Content[0]), openapi3.EnableJSONSchema2020())
}

// value is what an editor sees: by YAML 1.2 a date is text.
func value(node *yaml.Node) any {
	switch {
	case node.Kind == yaml.MappingNode:
		out := map[string]any{}
		for i := 0; i+1 < len(node.Content); i += 2 {
			out[node.Content[i].Value] = value(node.Content[i+1])
		}
		return out
	case node.Kind == yaml.SequenceNode:
		out := make([]any, len(node.Content))
		for i, item := range node.Content {
			out[i] = value(item)
		}
		return out
	case node.ShortTag() == "!!int" || node.ShortTag() == "!!float":
		if number, err := strconv.ParseFloat(node.Value, 64); err == nil {
			return number
		}
	case node.ShortTag() == "!!bool":
		return node.Value == "true"
	case node.ShortTag() == "!!null":
		return nil
	}
	return node.Value
}
