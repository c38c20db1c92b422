package rules

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v4"

	"tallyroll/internal/platform/yamlfile"
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

func fileErrorf(line int, format string, a ...any) *FileError {
	return yamlfile.Errorf(line, "%s", strings.Join(strings.Fields(fmt.Sprintf(format, a...)), " "))
}

// readFile parses a file's rules, or those that were in force earlier (stored). Its errors are *FileError.
func readFile(text []byte, stored bool) ([]*rule, error) {
	if len(text) > MaxFile {
		return nil, fileErrorf(0, "%d bytes: at most %d are allowed", len(text), MaxFile)
	}
	allowed := "a list of rules, each with " + ruleForm
	top, err := yamlfile.Document(text, allowed)
	if err != nil {
		return nil, err
	}
	if top.Kind != yaml.SequenceNode || len(top.Content) == 0 {
		return nil, fileErrorf(top.Line, "must be %s", allowed)
	}
	if len(top.Content) > MaxRules {
		return nil, fileErrorf(top.Content[MaxRules].Line, "this is rule %d: at most %d are allowed", MaxRules+1, MaxRules)
	}
	out := make([]*rule, 0, len(top.Content))
	for _, node := range top.Content {
		r, err := readRule(node, stored)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, checkFormats(out)
}

func readText(name string, node *yaml.Node) (string, error) {
	if node.ShortTag() != "!!str" {
		return "", fileErrorf(node.Line, "%s: %s is not text: put it in quotes", name, quoteNode(node))
	}
	return node.Value, nil
}

func quoteNode(node *yaml.Node) string {
	const maxLength = 64
	switch {
	case node.Kind != yaml.ScalarNode:
		return "a mapping or list"
	case len(node.Value) > maxLength:
		return fmt.Sprintf("%q…", node.Value[:maxLength])
	}
	return fmt.Sprintf("%q", node.Value)
}
