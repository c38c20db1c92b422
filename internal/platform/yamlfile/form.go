package yamlfile

import (
	"maps"
	"regexp"
	"strings"
)

// Form is what a mapping may have. Its names are those that Fields allows, and editors check files with its
// schema, so both always have the same fields.
type Form []Field

// Field is a field of a mapping.
type Field struct {
	Name   string // as Fields takes it, with [] or {}
	Schema Schema
	Doc    string
	// Choice joins fields of which exactly one must be there. A field may be in several, separated by spaces.
	Choice   string
	Required bool
}

// Schema is a JSON Schema.
type Schema map[string]any

// The schemas of single values. Programs read the text of a value, so 5 and "5" are the same.
var (
	Text = Schema{"type": []string{"string", "number", "boolean"}}
	Bool = Schema{"enum": []any{true, false, "true", "false"}}
)

func Matching(pattern string) Schema {
	return Schema{"type": Text["type"], "pattern": pattern}
}

func Integer(least, most int64) Schema {
	return Schema{"type": []string{"integer", "string"}, "pattern": "^-?[0-9]+$", "minimum": least, "maximum": most}
}

// Enum is for values of which the first is the default.
func Enum[T ~string](values []T) Schema { return Schema{"enum": values, "default": values[0]} }

// List is for one to most items.
func List(items Schema, most int) Schema {
	return Schema{"type": "array", "items": items, "minItems": 1, "maxItems": most}
}

// Mapping is for one to most values under names that match a pattern.
func Mapping(names *regexp.Regexp, values Schema, most int) Schema {
	return Schema{"type": "object", "propertyNames": Schema{"pattern": names.String()}, "additionalProperties": values,
		"minProperties": 1, "maxProperties": most}
}

// Names are what Fields takes.
func (f Form) Names() []string {
	out := make([]string, len(f))
	for i := range f {
		out[i] = f[i].Name
	}
	return out
}

// Schema returns the schema of such a mapping.
func (f Form) Schema() Schema {
	properties, required, choices := Schema{}, []string{}, map[string][]Schema{}
	for _, field := range f {
		name := plainName(field.Name)
		schema := maps.Clone(field.Schema)
		if field.Doc != "" {
			schema["description"] = field.Doc
		}
		properties[name] = schema
		if field.Required {
			required = append(required, name)
		}
		for _, choice := range strings.Fields(field.Choice) {
			choices[choice] = append(choices[choice], Schema{"required": []string{name}})
		}
	}
	out := Schema{"type": "object", "additionalProperties": false, "properties": properties, "required": required}
	var all []Schema
	for _, field := range f { // in the order of the form
		for _, choice := range strings.Fields(field.Choice) {
			if one := choices[choice]; one != nil {
				all = append(all, Schema{"oneOf": one})
				delete(choices, choice)
			}
		}
	}
	if all != nil {
		out["allOf"] = all
	}
	return out
}

// plainName is a name in a form as it stands in a file.
func plainName(name string) string { return strings.TrimSuffix(strings.TrimSuffix(name, "[]"), "{}") }
