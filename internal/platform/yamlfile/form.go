package yamlfile

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Form is what a mapping may have, and must have. Read refuses other mappings, and editors check files with
// its schema, so both always have the same fields. What a value may be is for the schema and the caller.
type Form []Field

// Field is a field of a mapping.
type Field struct {
	Name   string // as Fields takes it, with [], []? or {}
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

// ParseBool reads the values of Bool, in the spellings of YAML.
func ParseBool(node *yaml.Node) (value, ok bool) {
	switch node.Value {
	case "true", "True", "TRUE":
		return true, true
	case "false", "False", "FALSE":
		return false, true
	}
	return false, false
}

func Matching(pattern string) Schema {
	return Schema{"type": Text["type"], "pattern": pattern}
}

// MatchingText is for patterns that no number matches: a schema's pattern says nothing about numbers.
func MatchingText(pattern string) Schema { return Schema{"type": "string", "pattern": pattern} }

// Integer is for numbers, and for their digits as text. A minimum says nothing about text.
func Integer(least, most int64) Schema {
	sign := "-?"
	if least >= 0 {
		sign = ""
	}
	return Schema{"type": []string{"integer", "string"}, "pattern": "^" + sign + "[0-9]+$", "minimum": least,
		"maximum": most}
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

// Read is Fields with the names of the form, and also refuses a mapping that lacks a required field, or has
// another number of a choice's fields than one.
func (f Form) Read(node *yaml.Node, what string) (map[string]*yaml.Node, error) {
	values, err := Fields(node, what, f.Names()...)
	return values, cmp.Or(err, f.check(values, node.Line, what))
}

// ReadSecret is Read for a file that holds secrets.
func (f Form) ReadSecret(node *yaml.Node, what string) (map[string]*yaml.Node, error) {
	values, err := SecretFields(node, what, f.Names()...)
	return values, cmp.Or(err, f.check(values, node.Line, what))
}

func (f Form) check(values map[string]*yaml.Node, line int, what string) error {
	isMissing := func(name string) bool { return values[name] == nil }
	for _, field := range f {
		if name := plainName(field.Name); field.Required && isMissing(name) {
			return Errorf(line, "%s: missing: %s must have it", name, what)
		}
	}
	for _, names := range f.choices() {
		if given := slices.DeleteFunc(slices.Clone(names), isMissing); len(given) != 1 {
			return Errorf(line, "%s must have exactly one of %s, and has %s", what, strings.Join(names, ", "),
				cmp.Or(strings.Join(given, ", "), "none"))
		}
	}
	return nil
}

// choices returns the names of each choice's fields.
func (f Form) choices() (out [][]string) {
	index := make(map[string]int)
	for _, field := range f {
		for _, choice := range strings.Fields(field.Choice) {
			i, known := index[choice]
			if !known {
				i = len(out)
				index[choice], out = i, append(out, nil)
			}
			out[i] = append(out[i], plainName(field.Name))
		}
	}
	return out
}

// Schema returns the schema of such a mapping.
func (f Form) Schema() Schema {
	properties, required := Schema{}, []string{}
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
	}
	out := Schema{"type": "object", "additionalProperties": false, "properties": properties, "required": required}
	var all []Schema
	for _, names := range f.choices() {
		var one []Schema
		for _, name := range names {
			one = append(one, Schema{"required": []string{name}})
		}
		all = append(all, Schema{"oneOf": one})
	}
	if all != nil {
		out["allOf"] = all
	}
	return out
}

// plainName is a name in a form as it stands in a file.
func plainName(name string) string { return strings.TrimRight(name, "[]{}?") }
