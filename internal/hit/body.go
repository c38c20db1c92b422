package hit

import (
	"bytes"

	"github.com/go-faster/jx"
)

// Splitter splits the body of a message into its objects, one per Next.
type Splitter struct {
	Item  int    // index of the object
	Raw   []byte // the object, unchecked
	Wrong string // why Raw, with which the body ends, cannot be an object; "" if it can

	rest []byte // after Raw
	form bodyForm
}

// bodyForm is what the rest of a body has.
type bodyForm int

const (
	nothing   bodyForm = iota
	lines              // an object per line
	oneObject          // one object that spans lines
	elements           // an array's elements, and its end
	arrayEnd           // nothing, or something wrong, after an array
	noObject
)

const (
	notClosed   = "the array is not closed"
	moreFollows = "more follows the end of the array"
)

// Split splits a body that is not blank. The Splitter is before the first object.
func Split(body []byte) Splitter {
	s := Splitter{Item: -1, rest: trimSpace(TrimMark(body)), form: lines}
	switch {
	case len(s.rest) > 0 && s.rest[0] == '{':
		first, _, several := bytes.Cut(s.rest, newline)
		if several && !IsObject(first) && IsObject(s.rest) {
			s.form = oneObject
		}
	case len(s.rest) > 0 && s.rest[0] == '[':
		s.rest, s.form = trimSpace(s.rest[1:]), elements
		if len(s.rest) > 0 && s.rest[0] == ']' {
			s.rest, s.form = s.rest[1:], arrayEnd
		}
	default:
		s.rest, s.form = body, noObject
	}
	return s
}

// Next reports whether there is another object, or something Wrong.
func (s *Splitter) Next() bool {
	s.Item++
	switch s.form {
	case lines:
		for len(s.rest) > 0 {
			line, rest, _ := bytes.Cut(s.rest, newline)
			s.Raw, s.rest = trimSpace(line), rest
			if len(s.Raw) > 0 {
				return true
			}
		}
	case oneObject:
		s.Raw, s.form = s.rest, nothing
		return true
	case elements: // one by one, so that a bad one does not spoil the others
		end := elementEnd(s.rest)
		if end == len(s.rest) { // no comma and no bracket follows
			return s.end(notClosed)
		}
		if s.rest[end] == ']' {
			s.form = arrayEnd
		}
		s.Raw, s.rest = trimSpace(s.rest[:end]), s.rest[end+1:]
		return true
	case arrayEnd:
		s.rest = trimSpace(s.rest)
		return len(s.rest) > 0 && s.end(moreFollows)
	case noObject:
		return s.end("a body is empty, a JSON object per line, or a JSON array of objects")
	}
	return false
}

func (s *Splitter) end(wrong string) bool {
	s.Raw, s.Wrong, s.form = s.rest, wrong, nothing
	return true
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
	s := Split(body)
	for s.Next() {
		switch s.Wrong {
		case notClosed:
			rest = append([]byte("["), s.Raw...)
		case moreFollows:
			rest = append([]byte("[]"), s.Raw...)
		case "":
			items = append(items, s.Raw)
		default: // the whole body
			items = append(items, trimSpace(s.Raw))
		}
	}
	return items, rest
}
