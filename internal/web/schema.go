package web

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// docsFields lists the fields of a schema, nested ones by their path; of a choice, those of the first.
func docsFields(registry huma.Registry, s *huma.Schema, prefix string) []docsField {
	s = dereferenced(registry, s)
	if len(s.OneOf) > 0 {
		s = dereferenced(registry, s.OneOf[0])
	}
	var out []docsField
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		p := s.Properties[name]
		out = append(out, docsField{
			Name: prefix + name, Type: docsType(registry, p), About: p.Description, Example: firstExample(p), Required: slices.Contains(s.Required, name),
		})
		if p.Items != nil && len(dereferenced(registry, p.Items).Properties) > 0 {
			out = append(out, docsFields(registry, p.Items, prefix+name+"[].")...)
		}
	}
	return out
}

func dereferenced(registry huma.Registry, s *huma.Schema) *huma.Schema {
	for s.Ref != "" {
		s = registry.SchemaFromRef(s.Ref)
	}
	return s
}

func docsType(registry huma.Registry, s *huma.Schema) string {
	s = dereferenced(registry, s)
	switch {
	case len(s.OneOf) > 0:
		var types []string
		for _, one := range s.OneOf {
			types = append(types, docsType(registry, one))
		}
		return strings.Join(types, " or ")
	case s.Items != nil:
		return "list of " + docsType(registry, s.Items)
	case s.Format == "date-time":
		return "time"
	}
	return s.Type
}

func firstExample(s *huma.Schema) string {
	if len(s.Examples) == 0 {
		return ""
	}
	if text, ok := s.Examples[0].(string); ok {
		return text
	}
	return Compact(s.Examples[0])
}

// Compact is the JSON of a value of our own.
func Compact(v any) string {
	out, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Errorf("encode an example: %w", err)) // our own types always encode
	}
	return string(out)
}

func indented(v any) string {
	var out bytes.Buffer
	if err := json.Indent(&out, []byte(Compact(v)), "", "  "); err != nil {
		panic(fmt.Errorf("indent an example: %w", err)) // json.Marshal has just written it
	}
	return out.String()
}

// SchemaOf is the schema of a type that no handler returns as it is.
func SchemaOf[T any](registry huma.Registry) *huma.Schema {
	return registry.Schema(reflect.TypeFor[T](), true, "")
}
