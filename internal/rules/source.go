package rules

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

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

const subjectForm = "{subject} is the message's subject and {subject.1} what its first wildcard matched; " +
	"for a field subject of the event write ^.subject"

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
			return source{}, fmt.Errorf("%q: the subject %s has %d wildcards: %s",
				text, subjectFilter.text, count, subjectForm)
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

// The bounds of a path.
const (
	MaxPath  = 512 // bytes
	MaxDepth = 32  // names
)

// path leads to a value in JSON, in the syntax of gjson without what searches or changes: names separated by
// dots, as in customer.id. A number is also the index of an array's element; a backslash escapes the next
// character. ^. at the start means the event and not the element, and @this is the start itself.
type path struct {
	text  string
	event bool // starts at the event, even with each
	names []string
}

const pathForm = "must be names with dots between them, such as customer.id or items.0.sku, " +
	`with \ before one of .*?|#@!{}[]()=<>%&"':,\^ in a name`

// special are the characters with a meaning in gjson, now or in a later release.
const special = `.*?|#@!{}[]()=<>%&"':,\^`

func parsePath(text string) (path, error) {
	p := path{text: text}
	rest := text
	if rest == "^" || strings.HasPrefix(rest, "^.") {
		p.event = true
		rest = strings.TrimPrefix(strings.TrimPrefix(rest, "^"), ".")
		if rest == "" {
			return path{}, fmt.Errorf("path %q: what follows ^. is missing: %s", text, pathForm)
		}
	}
	switch {
	case len(text) > MaxPath:
		return path{}, fmt.Errorf("a path has %d bytes: at most %d are allowed", len(text), MaxPath)
	case text == "@this":
		return p, nil
	case text == "":
		return path{}, errors.New("a path is empty: " + pathForm)
	}
	names, err := splitPath(rest)
	if err != nil {
		return path{}, fmt.Errorf("path %q: %w: %s", text, err, pathForm)
	}
	if len(names) > MaxDepth {
		return path{}, fmt.Errorf("path %q has %d names: at most %d are allowed", text, len(names), MaxDepth)
	}
	p.names = names
	return p, nil
}

// splitPath refuses every character that gjson may read as more than a part of a name, unless a backslash is
// before it.
func splitPath(text string) (names []string, err error) {
	var name strings.Builder
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '\\' && i+1 < len(text) && strings.IndexByte(special, text[i+1]) >= 0:
			i++
			name.WriteByte(text[i])
		case c == '.':
			if name.Len() == 0 {
				return nil, errors.New("a name is empty")
			}
			names = append(names, name.String())
			name.Reset()
		case strings.IndexByte(special, c) >= 0:
			return nil, fmt.Errorf("%q is not allowed here", string(c))
		case c < ' ' || c == 0x7f:
			return nil, errors.New("a name has a control character")
		default:
			name.WriteByte(c)
		}
	}
	if name.Len() == 0 {
		return nil, errors.New("a name is empty")
	}
	names = append(names, name.String())
	if strings.ContainsRune(text, utf8.RuneError) { // half of a surrogate pair in an event reads like it
		return nil, errors.New("a name has the character U+FFFD or is not valid UTF-8")
	}
	return names, nil
}
