package rules

import (
	"fmt"
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
	return yamlfile.Errorf(line, "%s", strings.Join(strings.Fields(fmt.Sprintf(format, a...)), " "))
}

// readFile parses a file's rules. Its errors are *FileError.
func readFile(text []byte) ([]*rule, error) {
	if len(text) > MaxFile {
		return nil, wrong(0, "it has %d bytes: at most %d are allowed", len(text), MaxFile)
	}
	allowed := "a list of rules, each with " + ruleForm
	top, err := yamlfile.Document(text, allowed)
	if err != nil {
		return nil, err
	}
	if top.Kind != yaml.SequenceNode || len(top.Content) == 0 {
		return nil, wrong(top.Line, "allowed is %s", allowed)
	}
	if len(top.Content) > MaxRules {
		return nil, wrong(top.Content[MaxRules].Line, "this is rule %d: at most %d are allowed", MaxRules+1, MaxRules)
	}
	out := make([]*rule, 0, len(top.Content))
	for _, node := range top.Content {
		r, err := readRule(node)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, checkFormats(out)
}

func textOf(name string, node *yaml.Node) (string, error) {
	if node.ShortTag() != "!!str" {
		return "", wrong(node.Line, "%s: %s is not text: put it in quotes", name, shown(node))
	}
	return node.Value, nil
}

func shown(node *yaml.Node) string {
	const most = 64
	switch {
	case node.Kind != yaml.ScalarNode:
		return "a mapping or list"
	case len(node.Value) > most:
		return fmt.Sprintf("%q…", node.Value[:most])
	}
	return fmt.Sprintf("%q", node.Value)
}
