package rules

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"tallyroll/internal/hit"
)

// source is where a value comes from: constant text, the message's subject, or a path.
type source struct {
	kind     kind
	text     string // of the source as it is written; with constant, the value
	wildcard int
	path     path
}

type kind int

const (
	constant kind = iota
	subject       // the whole subject
	wildcard      // what one of its wildcards matched
	field         // a value of the event
)

// messageSubject is the message's subject, whatever the format.
const messageSubject = "@subject"

const subjectForm = "{subject} is the message's subject and {subject.1} what its first wildcard matched; for a field subject of the event write ^.subject"

// parseSource parses the text between braces in a key or a unique value, or the left side of a condition.
func parseSource(text string, subjectFilter filter) (source, error) {
	number, isWildcard := strings.CutPrefix(text, "subject.")
	switch {
	case text == "subject", text == messageSubject:
		return source{kind: subject, text: text}, nil
	case isWildcard:
		n, err := strconv.Atoi(number)
		if err != nil || strconv.Itoa(n) != number {
			return source{}, fmt.Errorf("%q: %s", text, subjectForm)
		}
		if count := subjectFilter.wildcards(); n < 1 || n > count {
			return source{}, fmt.Errorf("%q: the subject %s has %d wildcards: %s", text, subjectFilter.text, count, subjectForm)
		}
		return source{kind: wildcard, text: text, wildcard: n}, nil
	}
	p, err := parsePath(text)
	return source{kind: field, text: text, path: p}, err
}

// MaxParts bounds the pieces of a key or a unique value: text, and values in braces.
const MaxParts = 32

const keyForm = "must be text with values in braces, such as orders.{country}; write {{ and }} for braces"

// parseKey parses a counter's key, or a unique value, which has the same form.
func parseKey(text string, subjectFilter filter) ([]source, error) {
	var parts []source
	var literal strings.Builder
	total := 0
	flush := func() {
		if literal.Len() > 0 {
			parts = append(parts, source{kind: constant, text: literal.String()})
			total += literal.Len()
			literal.Reset()
		}
	}
	for rest := text; rest != ""; {
		switch {
		case strings.HasPrefix(rest, "{{"), strings.HasPrefix(rest, "}}"):
			literal.WriteByte(rest[0])
			rest = rest[2:]
		case rest[0] == '}':
			return nil, errors.New("a } without a {: " + keyForm)
		case rest[0] == '{':
			end := findClosingBrace(rest)
			if end < 0 {
				return nil, errors.New("a { without a }: " + keyForm)
			}
			flush()
			value, err := parseSource(rest[1:end], subjectFilter)
			if err != nil {
				return nil, err
			}
			parts = append(parts, value)
			rest = rest[end+1:]
		default:
			literal.WriteByte(rest[0])
			rest = rest[1:]
		}
	}
	flush()
	switch {
	case len(parts) == 0:
		return nil, errors.New("empty: " + keyForm)
	case len(parts) > MaxParts:
		return nil, fmt.Errorf("%d pieces of text and values: at most %d are allowed", len(parts), MaxParts)
	case total > hit.MaxName:
		return nil, fmt.Errorf("its text has %d bytes: the name of a counter has 1 to %d", total, hit.MaxName)
	}
	for _, part := range parts {
		if part.kind != constant {
			continue
		}
		err := hit.CheckName([]byte(part.text))
		if err != nil {
			return nil, err
		}
	}
	return parts, nil
}

// findClosingBrace returns the index of the brace that ends the value at the start of text, or -1.
func findClosingBrace(text string) int {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '}':
			return i
		}
	}
	return -1
}
