package hit

import (
	"bytes"
	"math"

	"github.com/go-faster/jx"
)

// Splitter splits the bodies of messages into their objects.
type Splitter struct {
	Most int // objects in one body
	// Item is called with each object, unchecked, and its index. If it returns false, Split ends.
	Item func(item int, raw []byte) (more bool)
	// Wrong is called with text that cannot be an object.
	Wrong func(item int, raw []byte, detail string)
	// TooMany is called if there are more than Most objects. Split ends.
	TooMany func(body []byte)
}

const (
	notClosed   = "the array is not closed"
	moreFollows = "more follows the end of the array"
)

// Split reads a body that is not blank.
func (s *Splitter) Split(body []byte) {
	trimmed := trimSpace(TrimMark(body))
	switch {
	case len(trimmed) > 0 && trimmed[0] == '{':
		s.lines(body, trimmed)
	case len(trimmed) > 0 && trimmed[0] == '[':
		s.array(body, trimmed)
	default:
		s.Wrong(0, body, "a body is empty, a JSON object per line, or a JSON array of objects")
	}
}

// lines reads one JSON object, which may span lines, or one per line.
func (s *Splitter) lines(body, trimmed []byte) {
	first, _, several := bytes.Cut(trimmed, newline)
	if several && !IsObject(first) && IsObject(trimmed) {
		s.Item(0, trimmed)
		return
	}
	item := 0
	for line := range bytes.SplitSeq(trimmed, newline) {
		line = trimSpace(line)
		if len(line) == 0 {
			continue
		}
		if item == s.Most {
			s.TooMany(body)
			return
		}
		if !s.Item(item, line) {
			return
		}
		item++
	}
}

// array reads the elements of a JSON array one by one, so that a bad one does not spoil the others.
func (s *Splitter) array(body, trimmed []byte) {
	rest := trimSpace(trimmed[1:])
	if len(rest) > 0 && rest[0] == ']' {
		s.endArray(0, rest[1:])
		return
	}
	for item := 0; ; item++ {
		end := elementEnd(rest)
		if end == len(rest) { // no comma and no bracket follows
			s.Wrong(item, rest, notClosed)
			return
		}
		if item == s.Most {
			s.TooMany(body)
			return
		}
		if !s.Item(item, trimSpace(rest[:end])) {
			return
		}
		closing := rest[end] == ']'
		rest = rest[end+1:]
		if closing {
			s.endArray(item+1, rest)
			return
		}
	}
}

func (s *Splitter) endArray(item int, rest []byte) {
	rest = trimSpace(rest)
	if len(rest) > 0 {
		s.Wrong(item, rest, moreFollows)
	}
}

// elementEnd returns the index of the comma or bracket after the first element, or len(b). It reads only the
// structure; the element is checked afterwards.
func elementEnd(b []byte) int {
	depth, quoted := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case quoted:
			if c == '\\' {
				i++
			} else if c == '"' {
				quoted = false
			}
		case c == '"':
			quoted = true
		case c == '{' || c == '[':
			depth++
		case depth == 0 && (c == ',' || c == ']'):
			return i
		case depth > 0 && (c == '}' || c == ']'): // a stray brace spoils only its own element
			depth--
		}
	}
	return len(b)
}

// TrimMark removes the byte-order mark that some editors begin a UTF-8 file with.
func TrimMark(body []byte) []byte { return bytes.TrimPrefix(body, byteOrderMark) }

var byteOrderMark = []byte("\ufeff")

var newline = []byte{'\n'}

// Blank reports whether a line has only JSON white space.
func Blank(line []byte) bool { return len(trimSpace(line)) == 0 }

func trimSpace(b []byte) []byte {
	if len(b) > 0 && b[0] > ' ' && b[len(b)-1] > ' ' { // the usual case
		return b
	}
	return bytes.Trim(b, " \t\r\n")
}

// IsObject reports whether b is one JSON object, possibly with white space around it.
func IsObject(b []byte) bool {
	d := jx.DecodeBytes(trimSpace(b))
	return d.Next() == jx.Object && d.Validate() == nil
}

// Items splits a body as Decoder does, without checks: the one object, the lines, or the elements of the
// array. rest, if not nil, is the wrong text after the last element, as a body that Decoder refuses in the
// same way.
func Items(body []byte) (items [][]byte, rest []byte) {
	if Blank(body) {
		return nil, nil
	}
	s := Splitter{
		Most: math.MaxInt,
		Item: func(_ int, raw []byte) bool {
			items = append(items, raw)
			return true
		},
		Wrong: func(_ int, raw []byte, detail string) {
			switch detail {
			case notClosed:
				rest = append([]byte("["), raw...)
			case moreFollows:
				rest = append([]byte("[]"), raw...)
			default: // the whole body
				items = append(items, trimSpace(raw))
			}
		},
	}
	s.Split(body)
	return items, rest
}
