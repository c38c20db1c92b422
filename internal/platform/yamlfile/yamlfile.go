package yamlfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Error is a mistake in a file.
type Error struct {
	Line    int // 0 if it is about the whole file
	Message string
}

// maxMessage bounds a message in bytes: a file can have a name or a value of any length.
const maxMessage = 500

func (e *Error) Error() string {
	message := e.Message
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "") + "…"
	}
	if e.Line == 0 {
		return message
	}
	return "line " + strconv.Itoa(e.Line) + ": " + message
}

// Errorf is a mistake on a line.
func Errorf(line int, format string, args ...any) *Error {
	return &Error{line, fmt.Sprintf(format, args...)}
}

// Document returns the value of a file that has one document. allowed names what such a file has: "a
// list of limits under limits:".
func Document(data []byte, allowed string) (*yaml.Node, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document yaml.Node
	err := decoder.Decode(&document)
	if errors.Is(err, io.EOF) || err == nil && len(document.Content) == 0 {
		return nil, Errorf(0, "empty: must be %s", allowed)
	}
	if err != nil {
		return nil, syntaxError(err)
	}
	var second yaml.Node
	err = decoder.Decode(&second)
	if err == nil {
		return nil, Errorf(second.Line, "a second YAML document begins here: must be one")
	}
	if !errors.Is(err, io.EOF) {
		return nil, syntaxError(err)
	}
	return document.Content[0], nil
}

// syntaxError is about a text that is not YAML.
func syntaxError(err error) *Error {
	var load *yaml.LoadError
	if !errors.As(err, &load) {
		return &Error{0, err.Error()}
	}
	if strings.Contains(load.Message, "anchor") { // it quotes the alias, which may be a secret that begins with *
		return &Error{load.Mark.Line, errAlias}
	}
	message := "not YAML: " + load.Message
	if context := load.ContextMark.Line; context > 0 && context != load.Mark.Line {
		message += fmt.Sprintf(" (%s that begins on line %d)", load.ContextMsg, context)
	}
	return &Error{load.Mark.Line, message}
}

// errAlias is about *name. An alias could also be a list that has itself in it.
const errAlias = "an alias is not allowed: write the value again"

// Fields returns the values of a mapping. It refuses fields with other names, fields that are there twice,
// and empty ones. what is the thing that has the fields, human-readable. An allowed name that ends with [] is
// that of a list of single values, one that ends with []? also of a single value, and one that ends with {}
// of a mapping or a list, which the caller reads.
func Fields(node *yaml.Node, what string, allowed ...string) (map[string]*yaml.Node, error) {
	return fields(node, what, func(name string) string { return fmt.Sprintf(" %q", name) }, allowed)
}

// SecretFields is Fields for a file that holds secrets: one may stand where the name of a field should.
func SecretFields(node *yaml.Node, what string, allowed ...string) (map[string]*yaml.Node, error) {
	return fields(node, what, func(string) string { return "" }, allowed)
}

func fields(node *yaml.Node, what string, quote func(name string) string,
	allowed []string) (map[string]*yaml.Node, error) {
	if node.Kind == yaml.AliasNode {
		return nil, &Error{node.Line, errAlias}
	}
	singles, lists, trees := make(map[string]bool), make(map[string]bool), make(map[string]bool)
	allowed = slices.Clone(allowed)
	for i, name := range allowed {
		allowed[i] = plainName(name)
		lists[allowed[i]] = strings.Contains(name, "[]")
		singles[allowed[i]] = !strings.HasSuffix(name, "[]")
		trees[allowed[i]] = strings.HasSuffix(name, "{}")
	}
	if node.Kind != yaml.MappingNode {
		return nil, Errorf(node.Line, "%s must be a mapping with the fields %s", what, strings.Join(allowed, ", "))
	}
	out := make(map[string]*yaml.Node)
	for i := 0; i+1 < len(node.Content); i += 2 {
		name, value := node.Content[i], node.Content[i+1]
		switch {
		case !slices.Contains(allowed, name.Value):
			return nil, Errorf(name.Line, "unknown field%s: must be one of %s", quote(name.Value),
				strings.Join(allowed, ", "))
		case out[name.Value] != nil:
			return nil, &Error{name.Line, name.Value + ": given twice"}
		case value.Kind == yaml.AliasNode:
			return nil, &Error{value.Line, name.Value + ": " + errAlias}
		case value.Kind == yaml.ScalarNode && (value.Value == "" || value.ShortTag() == "!!null"):
			return nil, &Error{name.Line, name.Value + ": empty"}
		case lists[name.Value]:
			if !isList(value) && !(singles[name.Value] && value.Kind == yaml.ScalarNode) {
				return nil, &Error{value.Line, name.Value + ": must be a list, such as [a, b], of values that are " +
					"not empty"}
			}
		case trees[name.Value]:
			if value.Kind == yaml.ScalarNode {
				return nil, &Error{value.Line, name.Value + ": must be a mapping or a list"}
			}
		case len(allowed) > 1 && value.Kind != yaml.ScalarNode:
			return nil, &Error{value.Line, name.Value + ": must be a single value"}
		}
		out[name.Value] = value
	}
	return out, nil
}

func isList(node *yaml.Node) bool {
	return node.Kind == yaml.SequenceNode && len(node.Content) > 0 && !slices.ContainsFunc(node.Content,
		func(v *yaml.Node) bool {
			return v.Kind != yaml.ScalarNode || v.Value == "" || v.ShortTag() == "!!null"
		})
}

// Nodes are the items of a list, or a single value itself; none if it is missing.
func Nodes(node *yaml.Node) []*yaml.Node {
	switch {
	case node == nil:
		return nil
	case node.Kind == yaml.ScalarNode:
		return []*yaml.Node{node}
	}
	return node.Content
}

// Values are the texts of Nodes.
func Values(node *yaml.Node) (out []string) {
	for _, v := range Nodes(node) {
		out = append(out, v.Value)
	}
	return out
}

// Value is the text of a single value; empty if it is missing.
func Value(node *yaml.Node) string {
	if node == nil {
		return ""
	}
	return node.Value
}
