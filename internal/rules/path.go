package rules

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

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

const pathForm = `must be names with dots between them, such as customer.id or items.0.sku, with \ before one of .*?|#@!{}[]()=<>%&"':,\^ in a name`

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
