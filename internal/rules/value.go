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
	isAbsent  valueKind = iota
	isText              // text is the string itself
	isEscaped           // a string with escapes; text is its JSON
	isPlain             // a header, or a part of the subject: text that may stand for any type
	isInteger
	isBool
	isNull
	isFloat
	isObject
	isArray
)

var kindNames = [...]string{"missing", "text", "text", "text", "a whole number", "true or false", "null", "a number with fraction or exponent", "an object", "an array"}

var zero = []byte("0")

// valueOf returns the value of valid JSON.
func valueOf(json []byte) value {
	switch json[0] {
	case '"':
		inner := json[1 : len(json)-1]
		if bytes.IndexByte(inner, '\\') >= 0 {
			return value{isEscaped, json}
		}
		return value{isText, inner}
	case '{':
		return value{isObject, json}
	case '[':
		return value{isArray, json}
	case 't', 'f':
		return value{isBool, json}
	case 'n':
		return value{isNull, json}
	}
	for _, c := range json {
		if c == '.' || c == 'e' || c == 'E' {
			return value{isFloat, json}
		}
	}
	if string(json) == "-0" {
		json = zero
	}
	return value{isInteger, json}
}

// missing reports whether there is nothing to count by: no field, null, or empty text.
func (v value) missing() bool {
	return v.kind == isAbsent || v.kind == isNull || len(v.text) == 0
}

// isText reports whether v is text, or can be read as text.
func (v value) isText() bool { return v.kind == isText || v.kind == isEscaped || v.kind == isPlain }

// appendTo appends text, an integer, true or false. ok is false for other kinds, and for half of a surrogate pair.
func (v value) appendTo(b []byte) (out []byte, ok bool) {
	switch v.kind {
	case isText, isPlain, isInteger, isBool:
		return append(b, v.text...), true
	case isEscaped:
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
	case v.kind == want.kind, v.kind == isPlain:
		return bytes.Equal(v.text, want.text)
	case v.kind == isEscaped && want.kind == isText:
		text, ok := v.appendTo(scratch[:0])
		return ok && bytes.Equal(text, want.text)
	}
	return false
}

func (v value) integer() (n int64, ok bool) {
	if v.kind != isInteger && v.kind != isPlain {
		return 0, false
	}
	n, err := strconv.ParseInt(string(v.text), 10, 64)
	return n, err == nil
}

// String returns the value for a detail, cut if it is longer than a line.
func (v value) String() string {
	const most = 64
	switch {
	case v.kind == isAbsent:
		return "missing"
	case v.kind == isNull:
		return "null"
	case len(v.text) == 0:
		return "empty"
	}
	text, rest := v.text, ""
	if len(text) > most {
		text, rest = text[:most], "…"
	}
	return fmt.Sprintf("%s, %q%s", kindNames[v.kind], text, rest)
}
