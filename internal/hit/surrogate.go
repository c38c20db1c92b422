package hit

import (
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/go-faster/jx"
)

// replacement is what half of a surrogate pair decodes to.
var replacement = []byte("\ufffd")

// halfSurrogate reports whether the key of an object that has been read has an
// escape such as \ud83d without its other half, which decodes to U+FFFD: two
// different keys would become the same. A U+FFFD that was written as itself is a character like any other.
func halfSurrogate(object []byte) (half bool) {
	err := jx.DecodeBytes(object).ObjBytes(func(j *jx.Decoder, name []byte) error {
		isKey := string(name) == "key"
		raw, err := j.Raw()
		if isKey {
			half = HalfSurrogate(raw)
		}
		return err
	})
	return half || err != nil
}

// HalfSurrogate reports whether a JSON string, in its quotes, has an escape such as \ud83d without its other half.
func HalfSurrogate(quoted []byte) bool {
	for i := 0; i < len(quoted); i++ {
		if quoted[i] != '\\' {
			continue
		}
		r := escapedRune(quoted[i:])
		switch {
		case !utf16.IsSurrogate(r):
			i++ // past the escaped character, which may be a backslash
		case utf16.DecodeRune(r, escapedRune(quoted[i+escapeLen:])) == utf8.RuneError:
			return true
		default:
			i += 2*escapeLen - 1
		}
	}
	return false
}

const escapeLen = len(`\u0000`)

// escapedRune is the number of the escape that b begins with, or -1.
func escapedRune(b []byte) rune {
	if len(b) < escapeLen || b[0] != '\\' || b[1] != 'u' {
		return -1
	}
	n, err := strconv.ParseUint(string(b[2:escapeLen]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(n)
}
