package rules

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/go-faster/jx"

	"tallyroll/internal/hit"
)

// value is the value at a path.
type value struct {
	kind valueKind
	text []byte // of an object or array, its JSON
}

type valueKind uint8

const (
	kindAbsent  valueKind = iota
	kindText              // text is the string itself
	kindEscaped           // a string with escapes; text is its JSON
	kindPlain             // a header, or a part of the subject: text that may stand for any type
	kindInteger
	kindBool
	kindNull
	kindFloat
	kindObject
	kindArray
)

var kindNames = [...]string{"missing", "text", "text", "text", "a whole number", "true or false", "null", "a number with fraction or exponent", "an object", "an array"}

var integerZero = []byte("0")

// parseValue returns the value of valid JSON.
func parseValue(json []byte) value {
	switch json[0] {
	case '"':
		inner := json[1 : len(json)-1]
		if bytes.IndexByte(inner, '\\') >= 0 {
			return value{kindEscaped, json}
		}
		return value{kindText, inner}
	case '{':
		return value{kindObject, json}
	case '[':
		return value{kindArray, json}
	case 't', 'f':
		return value{kindBool, json}
	case 'n':
		return value{kindNull, json}
	}
	for _, c := range json {
		if c == '.' || c == 'e' || c == 'E' {
			return value{kindFloat, json}
		}
	}
	if string(json) == "-0" {
		json = integerZero
	}
	return value{kindInteger, json}
}

// isMissing reports whether there is nothing to count by: no field, null, or empty text.
func (v value) isMissing() bool {
	return v.kind == kindAbsent || v.kind == kindNull || len(v.text) == 0
}

// isText reports whether v is text, or can be read as text.
func (v value) isText() bool {
	return v.kind == kindText || v.kind == kindEscaped || v.kind == kindPlain
}

// appendTo appends text, an integer, true or false. ok is false for others and for half of a surrogate pair.
func (v value) appendTo(b []byte) (out []byte, ok bool) {
	switch v.kind {
	case kindText, kindPlain, kindInteger, kindBool:
		return append(b, v.text...), true
	case kindEscaped:
		if hit.HalfSurrogate(v.text) {
			return b, false
		}
		out, err := jx.DecodeBytes(v.text).StrAppend(b)
		return out, err == nil
	}
	return b, false
}

// equals reports whether v is the value of a rule's condition. scratch is memory for v's text.
func (v value) equals(want value, scratch []byte) bool {
	switch {
	case v.kind == want.kind, v.kind == kindPlain:
		return bytes.Equal(v.text, want.text)
	case v.kind == kindEscaped && want.kind == kindText:
		text, ok := v.appendTo(scratch[:0])
		return ok && bytes.Equal(text, want.text)
	}
	return false
}

func (v value) parseInteger() (n int64, ok bool) {
	if v.kind != kindInteger && v.kind != kindPlain {
		return 0, false
	}
	n, err := strconv.ParseInt(string(v.text), 10, 64)
	return n, err == nil
}

// String returns the value for a detail, cut if it is longer than a line.
func (v value) String() string {
	const maxLength = 64
	switch {
	case v.kind == kindAbsent:
		return "missing"
	case v.kind == kindNull:
		return "null"
	case len(v.text) == 0:
		return "empty"
	}
	text, rest := v.text, ""
	if len(text) > maxLength {
		text, rest = text[:maxLength], "…"
	}
	return fmt.Sprintf("%s, %q%s", kindNames[v.kind], text, rest)
}
