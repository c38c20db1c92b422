package rules

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"tallyroll/internal/yamlfile"
)

// The bounds of a file.
const (
	MaxFile     = 1 << 20 // bytes
	MaxRules    = 1000
	MaxCounters = 100 // of one rule
	MaxWhen     = 32  // conditions of one rule
)

// FileError is the first mistake in a rules file.
type FileError = yamlfile.Error

func wrong(line int, format string, a ...any) *FileError {
	return yamlfile.Errorf(line, "%s", oneLine(fmt.Sprintf(format, a...)))
}

// readFile reads a file's rules.
func readFile(text []byte) ([]*rule, *FileError) {
	if len(text) > MaxFile {
		return nil, wrong(0, "it has %d bytes: at most %d are allowed", len(text), MaxFile)
	}
	top, bad := readYAML(text)
	if bad != nil {
		return nil, bad
	}
	if top.Kind != yaml.SequenceNode || len(top.Content) == 0 {
		return nil, wrong(top.Line, "allowed is a list of rules, each with %s", list(ruleFields))
	}
	if len(top.Content) > MaxRules {
		return nil, wrong(top.Content[MaxRules].Line, "this is rule %d: at most %d are allowed", MaxRules+1, MaxRules)
	}
	out := make([]*rule, 0, len(top.Content))
	for _, node := range top.Content {
		r, bad := readRule(node)
		if bad != nil {
			return nil, bad
		}
		out = append(out, r)
	}
	return out, checkFormats(out)
}

// readYAML reads the one document of a file.
func readYAML(text []byte) (*yaml.Node, *FileError) {
	top, err := yamlfile.Document(text, "a list of rules, each with "+list(ruleFields))
	var bad *yamlfile.Error
	if errors.As(err, &bad) {
		return nil, wrong(bad.Line, "%s", bad.Message)
	}
	return top, nil
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// fieldsOf returns the values of a mapping. what says whose fields they are.
func fieldsOf(node *yaml.Node, what string, allowed []string) (map[string]*yaml.Node, *FileError) {
	bad := checkNode(node)
	if bad != nil {
		return nil, bad
	}
	if node.Kind != yaml.MappingNode {
		return nil, wrong(node.Line, "%s is no mapping: allowed is %s", what, list(allowed))
	}
	out := make(map[string]*yaml.Node)
	for i := 0; i+1 < len(node.Content); i += 2 {
		name, value := node.Content[i], node.Content[i+1]
		bad := checkNode(value)
		switch {
		case name.Kind != yaml.ScalarNode || !slices.Contains(allowed, name.Value):
			return nil, wrong(name.Line, "unknown field %s in %s: allowed is %s", shown(name), what, list(allowed))
		case out[name.Value] != nil:
			return nil, wrong(name.Line, "%s: it is there twice", name.Value)
		case bad != nil:
			return nil, bad
		case value.Kind == yaml.ScalarNode && value.ShortTag() == "!!null":
			return nil, wrong(name.Line, "%s: it is empty", name.Value)
		}
		out[name.Value] = value
	}
	return out, nil
}

// checkNode refuses what makes a small file large, and types of one's own.
func checkNode(node *yaml.Node) *FileError {
	switch {
	case node.Kind == yaml.AliasNode:
		return wrong(node.Line, "an alias (*%s) is not allowed: write the value again", node.Value)
	case node.Anchor != "":
		return wrong(node.Line, "an anchor (&%s) is not allowed: write the value where it is needed", node.Anchor)
	case node.Style&yaml.TaggedStyle != 0:
		return wrong(node.Line, "a tag (%s) is not allowed", node.ShortTag())
	}
	return nil
}

// textOf is the text of a field.
func textOf(name string, node *yaml.Node) (string, *FileError) {
	switch {
	case node.Kind == yaml.MappingNode && node.Style&yaml.FlowStyle != 0:
		return "", wrong(node.Line, "%s: allowed is text; put it in quotes if it begins with {", name)
	case node.Kind != yaml.ScalarNode:
		return "", wrong(node.Line, "%s: allowed is text", name)
	case node.ShortTag() != "!!str":
		return "", wrong(node.Line, "%s: %s is no text: put it in quotes", name, shown(node))
	case node.Value == "":
		return "", wrong(node.Line, "%s: it is empty", name)
	}
	return node.Value, nil
}

// shown is how a message names a value.
func shown(node *yaml.Node) string {
	const most = 64
	switch {
	case node.Kind != yaml.ScalarNode:
		return "that is no text"
	case len(node.Value) > most:
		return fmt.Sprintf("%q…", node.Value[:most])
	}
	return fmt.Sprintf("%q", node.Value)
}

func list[T ~string](all []T) string {
	names := make([]string, len(all))
	for i, a := range all {
		names[i] = string(a)
	}
	return strings.Join(names, ", ")
}
