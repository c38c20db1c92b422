package rules

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	stdpath "path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"tallyroll/internal/platform/yamlfile"
)

// Set is the content of a rules file.
type Set struct {
	text        []byte
	fingerprint string
	rules       []*rule
}

// Parse parses a rules file. The error is a *FileError: the line, what is wrong and what is allowed.
func Parse(text []byte) (*Set, error) { return parse(text, false) }

// ParseStored parses rules that Parse accepted earlier. What it refuses since keeps the meaning that it had.
func ParseStored(text []byte) (*Set, error) { return parse(text, true) }

func parse(text []byte, stored bool) (*Set, error) {
	rules, err := readFile(text, stored)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	return &Set{text: bytes.Clone(text), fingerprint: hex.EncodeToString(sum[:])[:16], rules: rules}, nil
}

// Text is the argument of Parse.
func (s *Set) Text() []byte { return s.text }

// Fingerprint is the first 16 hex digits of the SHA-256 of the text.
func (s *Set) Fingerprint() string { return s.fingerprint }

func (s *Set) Len() int { return len(s.rules) }

// Streams returns the streams that rules name without a wildcard.
func (s *Set) Streams() []string {
	var out []string
	for _, r := range s.rules {
		if !IsGlob(r.stream) && !slices.Contains(out, r.stream) {
			out = append(out, r.stream)
		}
	}
	return out
}

// RuleRef is a rule's line in its file, and its stream.
type RuleRef struct {
	Line   int
	Stream string
}

// Unused returns the rules that match none of these streams.
func (s *Set) Unused(streams []string) []RuleRef {
	var out []RuleRef
	for _, r := range s.rules {
		if !slices.ContainsFunc(streams, func(name string) bool { return matchesGlob(r.stream, name) }) {
			out = append(out, RuleRef{r.line, r.stream})
		}
	}
	return out
}

// CommonSource returns the stream and the subject of all rules. Each is "" if they differ or have wildcards.
func (s *Set) CommonSource() (stream, subject string) {
	stream, subject = s.rules[0].stream, s.rules[0].filter.text
	for _, r := range s.rules {
		if r.stream != stream || IsGlob(stream) {
			stream = ""
		}
		if r.filter.text != subject || r.filter.wildcards() > 0 {
			subject = ""
		}
	}
	return stream, subject
}

// ForStream returns the rules for a stream in the order of the file, never nil. If it has no rules, messages
// are decoded as hits, except CloudEvents, which are rejected with hit.NoRule.
func (s *Set) ForStream(stream string) *Rules {
	r := new(Rules)
	for _, rule := range s.rules {
		if matchesGlob(rule.stream, stream) {
			r.rules = append(r.rules, rule)
		}
	}
	return r
}

// Rules are the rules for one stream. Several Decoders may share them.
type Rules struct{ rules []*rule }

func (r *Rules) Len() int { return len(r.rules) }

// IsGlob reports whether the stream of a rule has wildcards.
func IsGlob(stream string) bool { return strings.ContainsAny(stream, `*?[\`) }

func matchesGlob(glob, stream string) bool {
	ok, _ := matchGlob(glob, stream)
	return ok
}

// matchGlob is path.Match, as for INGEST_STREAMS.
func matchGlob(glob, stream string) (bool, error) { return stdpath.Match(glob, stream) }

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
	allowed := "a list of rules, each with " + ruleFields
	top, err := yamlfile.Document(text, allowed)
	if err != nil {
		return nil, err
	}
	if top.Kind != yaml.SequenceNode || len(top.Content) == 0 {
		return nil, fileErrorf(top.Line, "must be %s", allowed)
	}
	if len(top.Content) > MaxRules {
		return nil, fileErrorf(top.Content[MaxRules].Line,
			"this is rule %d: at most %d are allowed", MaxRules+1, MaxRules)
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
