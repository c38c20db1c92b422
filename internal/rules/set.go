package rules

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	stdpath "path"
	"slices"
	"strings"
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
