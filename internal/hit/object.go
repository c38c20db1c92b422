package hit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/go-faster/jx"
)

// object reads the JSON objects of hits in turn, into memory that it reuses.
type object struct {
	json  jx.Decoder
	field func(j *jx.Decoder, name []byte) error // readField: the method value is allocated only once
	names []byte                                 // the counters and unique values since forget

	// Of the current object:
	key     []byte // points into names
	hasKey  bool
	n, at   int64
	unique  []byte   // points into names; nil without one
	all     bool     // the hit is in the sum of all hits
	refusal *Refusal // of the first bad field
}

func newObject() *object {
	o := new(object)
	o.field = o.readField
	return o
}

// clearNames invalidates the counters and unique values read so far.
func (o *object) clearNames() { o.names = o.names[:0] }

// reset clears the previous object. at is the time of an object without ts.
func (o *object) reset(at int64) {
	o.key, o.hasKey, o.n, o.at, o.unique, o.all, o.refusal = nil, false, 1, at, nil, true, nil
}

func (o *object) read(h *Hit, raw []byte, subject string, at int64) *Refusal {
	o.reset(at)
	if o.readPlain(raw) {
		return o.fill(h, subject)
	}
	return o.readAny(h, raw, subject, at)
}

// readPlain reads an object in the form of nearly all producers, many times faster than a JSON decoder: the
// fields key, n, ts, unique, and all if it is false, at most once, strings of printable ASCII without
// escapes, numbers without sign, and no white space but a space after a colon or comma. For other objects it
// returns false, and o is undefined.
func (o *object) readPlain(raw []byte) bool {
	var hasN, hasTS bool
	for i := 1; len(raw) > 1 && raw[0] == '{'; i++ {
		switch rest := raw[i:]; {
		case hasPrefix(rest, `"key":`) && !o.hasKey:
			i = pastSpace(raw, i+len(`"key":`))
			end := plainText(raw, i)
			if end < 0 {
				return false
			}
			start := len(o.names)
			o.names = append(o.names, raw[i+1:end]...)
			o.key, o.hasKey = o.names[start:], true
			i = end + 1
		case hasPrefix(rest, `"n":`) && !hasN:
			hasN = true
			if o.n, i = plainNumber(raw, pastSpace(raw, i+len(`"n":`))); o.n < 1 || o.n > MaxN {
				return false
			}
		case hasPrefix(rest, `"ts":`) && !hasTS:
			hasTS = true
			if o.at, i = plainNumber(raw, pastSpace(raw, i+len(`"ts":`))); o.at < 0 {
				return false
			}
		case hasPrefix(rest, `"unique":`) && o.unique == nil:
			i = pastSpace(raw, i+len(`"unique":`))
			end := plainText(raw, i)
			if end < 0 || end == i+1 || end-i > MaxUnique+1 {
				return false
			}
			start := len(o.names)
			o.names = append(o.names, raw[i+1:end]...)
			o.unique = o.names[start:len(o.names):len(o.names)]
			i = end + 1
		case hasPrefix(rest, `"all":`) && o.all:
			i = pastSpace(raw, i+len(`"all":`))
			if !hasPrefix(raw[i:], "false") {
				return false
			}
			o.all, i = false, i+len("false")
		default:
			return false
		}
		switch {
		case i == len(raw)-1 && raw[i] == '}':
			return true
		case i >= len(raw) || raw[i] != ',':
			return false
		}
		i = pastSpace(raw, i+1) - 1
	}
	return false
}

func hasPrefix(b []byte, text string) bool {
	return len(b) >= len(text) && string(b[:len(text)]) == text
}

// pastSpace returns the position after an optional space at i.
func pastSpace(b []byte, i int) int {
	if i < len(b) && b[i] == ' ' {
		i++
	}
	return i
}

// plainText returns the position of the closing quote of the string that begins at i, or -1.
func plainText(b []byte, i int) int {
	if i >= len(b) || b[i] != '"' {
		return -1
	}
	for i++; i < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			return i
		case c == '\\' || c < ' ' || c > '~':
			return -1
		}
	}
	return -1
}

// plainNumber returns the number at i (at most 18 digits, no leading zero) and the position after it, or -1.
func plainNumber(b []byte, i int) (n int64, end int) {
	for end = i; end < len(b) && b[end] >= '0' && b[end] <= '9'; end++ {
		if n = 10*n + int64(b[end]-'0'); end-i == 18 {
			return -1, end
		}
	}
	if end == i || b[i] == '0' && end > i+1 {
		return -1, end
	}
	return n, end
}

func (o *object) readAny(h *Hit, raw []byte, subject string, at int64) *Refusal {
	o.reset(at)
	o.json.ResetBytes(raw)
	err := o.json.ObjBytes(o.field)
	if err == nil && o.json.Skip() != io.EOF {
		err = errors.New("more follows the object")
	}
	switch {
	case err != nil:
		return &Refusal{BadJSON, "not a JSON object: " + err.Error()}
	case o.refusal != nil:
		return o.refusal
	case o.hasKey && bytes.Contains(o.key, replacement) && halfSurrogate(raw, "key"):
		return &Refusal{BadKey, "key has half of a surrogate pair"}
	case bytes.Contains(o.unique, replacement) && halfSurrogate(raw, "unique"):
		return &Refusal{BadUnique, "unique has half of a surrogate pair"}
	}
	return o.fill(h, subject)
}

func (o *object) fill(h *Hit, subject string) *Refusal {
	counter := o.key
	if !o.hasKey {
		if subject == "" {
			return &Refusal{BadKey, "no key, and nothing else names the counter"}
		}
		start := len(o.names)
		o.names = append(o.names, subject...)
		counter = o.names[start:]
	}
	if err := CheckName(counter); err != nil {
		return &Refusal{BadKey, err.Error()}
	}
	if err := CheckTime(o.at); err != nil && o.at != NoTime {
		return &Refusal{BadTime, err.Error()}
	}
	h.Counter, h.N, h.At, h.Unique, h.Excluded = counter, o.n, o.at, o.unique, !o.all
	return nil
}

func (o *object) readField(j *jx.Decoder, name []byte) error {
	switch string(name) {
	case "key":
		return o.readKey(j)
	case "n":
		return o.readN(j)
	case "ts":
		return o.readTS(j)
	case "unique":
		return o.readUnique(j)
	case "all":
		return o.readAll(j)
	}
	if right := rightNames[string(name)]; right != "" {
		return o.refuseMistake(j, name, right)
	}
	return j.Skip()
}

func (o *object) readKey(j *jx.Decoder) (err error) {
	if j.Next() != jx.String {
		o.refuse(BadKey, "key must be a string")
		return j.Skip()
	}
	start := len(o.names)
	o.names, err = j.StrAppend(o.names)
	o.key, o.hasKey = o.names[start:], true
	return err
}

// readUnique's refusals do not contain the value.
func (o *object) readUnique(j *jx.Decoder) (err error) {
	if j.Next() != jx.String {
		o.refuse(BadUnique, "unique must be a string")
		return j.Skip()
	}
	start := len(o.names)
	if o.names, err = j.StrAppend(o.names); err != nil {
		return err
	}
	o.unique = o.names[start:len(o.names):len(o.names)]
	if wrong := CheckUnique(o.unique); wrong != nil {
		o.refuse(BadUnique, "unique: "+wrong.Error())
	}
	return nil
}

func (o *object) readAll(j *jx.Decoder) (err error) {
	if j.Next() != jx.Bool {
		o.refuse(BadField, "all must be true or false")
		return j.Skip()
	}
	o.all, err = j.Bool()
	return err
}

func (o *object) readN(j *jx.Decoder) error {
	n, text, ok, err := readInteger(j)
	if !ok || n < 1 || n > MaxN {
		o.refuse(BadCount, fmt.Sprintf("n must be an integer from 1 to %d, not %s", int64(MaxN), quote(text)))
	}
	o.n = n
	return err
}

func (o *object) readTS(j *jx.Decoder) error {
	if j.Next() != jx.String {
		at, _, ok, err := readInteger(j)
		if !ok {
			o.refuse(BadTime, "ts must be Unix milliseconds as an integer, or an RFC 3339 string")
		}
		o.at = max(at, NoTime+1) // also out of range, but different from a missing ts
		return err
	}
	text, err := j.StrBytes()
	if err != nil {
		return err
	}
	at, err := ParseTime(string(text))
	if err != nil {
		o.refuse(BadTime, fmt.Sprintf("ts %s is not an RFC 3339 time", quote(text)))
	}
	o.at = at
	return nil
}

// readInteger reads a number without fraction or exponent, and its text; ok is false for any other value.
func readInteger(j *jx.Decoder) (n int64, text []byte, ok bool, err error) {
	if j.Next() != jx.Number {
		text, err := j.Raw()
		return 0, text, false, err
	}
	text, err = j.Num()
	if err != nil {
		return 0, nil, false, err
	}
	n, parseErr := strconv.ParseInt(string(text), 10, 64)
	return n, text, parseErr == nil, nil
}

// refuseMistake refuses a field that is probably a mistake for another one: the hit would count wrongly.
func (o *object) refuseMistake(j *jx.Decoder, name []byte, right string) error {
	o.refuse(BadField, fmt.Sprintf("a hit has no field %q: use %q", name, right))
	return j.Skip()
}

func (o *object) refuse(reason Reason, detail string) {
	if o.refusal == nil {
		o.refusal = &Refusal{reason, detail}
	}
}

func quote(text []byte) string {
	const most = 64
	if len(text) > most {
		return fmt.Sprintf("%q…", text[:most])
	}
	return fmt.Sprintf("%q", text)
}

var replacement = []byte("\ufffd")

// halfSurrogate reports whether a string field has an escape such as \ud83d without its other half. It
// decodes to U+FFFD, so two texts would become the same. A literal U+FFFD is a character like any other.
func halfSurrogate(object []byte, field string) (half bool) {
	err := jx.DecodeBytes(object).ObjBytes(func(j *jx.Decoder, name []byte) error {
		isField := string(name) == field
		raw, err := j.Raw()
		if isField {
			half = HalfSurrogate(raw)
		}
		return err
	})
	return half || err != nil
}

// HalfSurrogate reports whether a quoted JSON string has an escape such as \ud83d without its other half.
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

// escapedRune returns the number of the escape that b begins with, or -1.
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
