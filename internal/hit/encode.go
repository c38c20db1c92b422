package hit

import (
	"strconv"
	"unicode/utf8"
)

// AppendJSON appends the hit's object, unchecked, without an n of 1, a ts of NoTime, a nil unique, and all if
// it is true.
func (h Hit) AppendJSON(b []byte) []byte {
	b = append(b, `{"key":`...)
	b = appendString(b, h.Counter)
	if h.N != 1 {
		b = append(b, `,"n":`...)
		b = strconv.AppendInt(b, h.N, 10)
	}
	if h.At != NoTime {
		b = append(b, `,"ts":`...)
		b = strconv.AppendInt(b, h.At, 10)
	}
	if h.Unique != nil {
		b = append(b, `,"unique":`...)
		b = appendString(b, h.Unique)
	}
	if h.Excluded {
		b = append(b, `,"all":false`...)
	}
	return append(b, '}')
}

const hexDigits = "0123456789abcdef"

// appendString appends s as a JSON string. Bytes that are not UTF-8 become U+FFFD, as in encoding/json, which
// takes four times as long per hit (181 ns, not 42 ns).
func appendString(b, s []byte) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRune(s[i:])
			if r == utf8.RuneError && size == 1 {
				b = append(b, s[start:i]...)
				b = append(b, `\ufffd`...)
				start = i + 1
			}
			i += size
			continue
		}
		if c >= ' ' && c != '"' && c != '\\' {
			i++
			continue
		}
		b = append(b, s[start:i]...)
		if c == '"' || c == '\\' {
			b = append(b, '\\', c)
		} else {
			b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		i++
		start = i
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}
