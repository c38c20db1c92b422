package consume

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/go-faster/jx"

	"tallyroll/internal/window"
)

// Reasons why a hit is rejected; the header Tallyroll-Reason.
const (
	badJSON  = "bad_json"
	badKey   = "bad_key"
	badCount = "bad_count"
	badTime  = "bad_time"
	future   = "future"
	tooLate  = "too_late"
	tooLarge = "too_large"
)

var reasons = []string{badJSON, badKey, badCount, badTime, future, tooLate, tooLarge}

// maxKey is the longest counter name, in bytes.
const maxKey = 512

// maxCount is the largest n of one hit. An int64 holds the sum of 8 million of these.
const maxCount = 1 << 40

// hit is one countable hit. counter is valid until the next message is decoded.
type hit struct {
	counter []byte
	hash    uint64
	at      int64 // Unix milliseconds
	n       int64
}

// reject is a hit that cannot be counted. body is valid until the next message is decoded.
type reject struct {
	reason, detail string
	item           int // index in the message
	body           []byte
}

// decoder turns a message into hits and rejects. What it decides depends on the
// message, the time it was stored and the limits, never on the clock, so that a
// replay decides the same. It is not safe for concurrent use.
type decoder struct {
	layout   window.Layout
	maxAhead time.Duration
	maxHits  int

	hits    []hit
	rejects []reject
	json    jx.Decoder
	arena   []byte // the counters of this message
	fields  fields
	field   func(d *jx.Decoder, name []byte) error // d.fields.read, made once
}

func newDecoder(layout window.Layout, maxAhead time.Duration, maxHits int) *decoder {
	d := &decoder{layout: layout, maxAhead: maxAhead, maxHits: maxHits}
	d.field = d.fields.read
	return d
}

// decode reads a message that a stream stored at the Unix millisecond stored
// and leaves what it found in d.hits and d.rejects. subject is the counter of hits that name none.
func (d *decoder) decode(subject string, stored int64, body []byte) {
	d.hits, d.rejects, d.arena = d.hits[:0], d.rejects[:0], d.arena[:0]
	trimmed := trimSpace(body)
	if len(trimmed) == 0 {
		d.accept(0, body, fields{n: 1, at: stored}, subject, stored)
		return
	}
	switch trimmed[0] {
	case '{':
		d.lines(body, trimmed, subject, stored)
	case '[':
		d.array(body, trimmed, subject, stored)
	default:
		d.refuse(0, body, badJSON, "a body is empty, a JSON object per line, or a JSON array of objects")
	}
}

// lines reads one JSON object, which may stretch over lines, or one per line.
func (d *decoder) lines(body, trimmed []byte, subject string, stored int64) {
	first, _, several := bytes.Cut(trimmed, newline)
	if several && !isObject(first) && isObject(trimmed) {
		d.item(0, trimmed, subject, stored)
		return
	}
	item := 0
	for line := range bytes.SplitSeq(trimmed, newline) {
		if line = trimSpace(line); len(line) == 0 {
			continue
		}
		if item == d.maxHits {
			d.tooMany(body)
			return
		}
		d.item(item, line, subject, stored)
		item++
	}
}

// array reads the elements of a JSON array one by one, so that a bad one spoils no other.
func (d *decoder) array(body, trimmed []byte, subject string, stored int64) {
	rest := trimSpace(trimmed[1:])
	if len(rest) > 0 && rest[0] == ']' {
		if rest = trimSpace(rest[1:]); len(rest) > 0 {
			d.refuse(0, rest, badJSON, "more follows the end of the array")
		}
		return
	}
	for item := 0; ; item++ {
		end := elementEnd(rest)
		if end == len(rest) { // no comma and no bracket follows
			d.refuse(item, rest, badJSON, "the array is not closed")
			return
		}
		if item == d.maxHits {
			d.tooMany(body)
			return
		}
		d.item(item, trimSpace(rest[:end]), subject, stored)
		closing := rest[end] == ']'
		rest = rest[end+1:]
		if closing {
			if rest = trimSpace(rest); len(rest) > 0 {
				d.refuse(item+1, rest, badJSON, "more follows the end of the array")
			}
			return
		}
	}
}

// elementEnd is the index of the comma or bracket that ends the first element,
// or len(b). It looks at structure only; the element is checked afterwards.
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
		case depth > 0 && (c == '}' || c == ']'): // a stray brace spoils its own element only
			depth--
		}
	}
	return len(b)
}

// tooMany rejects the message whole.
func (d *decoder) tooMany(body []byte) {
	d.hits, d.rejects = d.hits[:0], d.rejects[:0]
	d.refuse(0, body, tooLarge, fmt.Sprintf("the message carries more than %d hits: send smaller batches or raise INGEST_MAX_HITS", d.maxHits))
}

func (d *decoder) refuse(item int, body []byte, reason, detail string) {
	d.rejects = append(d.rejects, reject{reason, detail, item, body})
}

// fields are the known fields of a hit's object.
type fields struct {
	key    []byte // appended to the arena
	hasKey bool
	n      int64
	at     int64 // Unix milliseconds

	arena          []byte
	reason, detail string // of the first field that is no good
}

// item reads one object.
func (d *decoder) item(item int, raw []byte, subject string, stored int64) {
	d.fields = fields{n: 1, at: stored, arena: d.arena}
	d.json.ResetBytes(raw)
	err := d.json.ObjBytes(d.field)
	if err == nil {
		if d.json.Skip() != io.EOF {
			err = fmt.Errorf("more follows the object")
		}
	}
	d.arena = d.fields.arena
	switch {
	case err != nil:
		d.refuse(item, raw, badJSON, "not a JSON object: "+err.Error())
	case d.fields.reason != "":
		d.refuse(item, raw, d.fields.reason, d.fields.detail)
	case d.fields.hasKey && bytes.Contains(d.fields.key, replacement) && halfSurrogate(raw):
		d.refuse(item, raw, badKey, "key has half of a surrogate pair")
	default:
		d.accept(item, raw, d.fields, subject, stored)
	}
}

// read takes one field of the object. Fields that are not known are ignored, but
// those that were surely meant for one of ours are refused: the hit would count, and wrong.
func (f *fields) read(j *jx.Decoder, name []byte) error {
	switch string(name) {
	case "key":
		if j.Next() != jx.String {
			return f.skip(j, badKey, "key must be a string")
		}
		start := len(f.arena)
		var err error
		f.arena, err = j.StrAppend(f.arena)
		f.key, f.hasKey = f.arena[start:], true
		return err
	case "n":
		n, ok, err := integer(j)
		if err == nil && (!ok || n < 1 || n > maxCount) {
			f.bad(badCount, fmt.Sprintf("n must be an integer from 1 to %d", int64(maxCount)))
		}
		f.n = n
		return err
	case "ts":
		if j.Next() != jx.String {
			at, ok, err := integer(j)
			if err == nil && !ok {
				f.bad(badTime, "ts must be Unix milliseconds as an integer, or an RFC 3339 string")
			}
			f.at = at
			return err
		}
		text, err := j.StrBytes()
		if err != nil {
			return err
		}
		at, err := time.Parse(time.RFC3339, string(text))
		if err != nil {
			f.bad(badTime, fmt.Sprintf("ts %q is not an RFC 3339 time", clip(string(text), 64)))
		}
		f.at = at.UnixMilli()
		return nil
	case "Key":
		return f.slip(j, name, "key")
	case "N", "count", "value":
		return f.slip(j, name, "n")
	case "time", "timestamp":
		return f.slip(j, name, "ts")
	}
	return j.Skip()
}

// slip refuses a field that is called otherwise here.
func (f *fields) slip(j *jx.Decoder, name []byte, right string) error {
	return f.skip(j, badJSON, fmt.Sprintf("a hit has no field %q: use %q", name, right))
}

// integer reads a number without fraction or exponent; ok is false for any other value.
func integer(j *jx.Decoder) (n int64, ok bool, err error) {
	if j.Next() != jx.Number {
		return 0, false, j.Skip()
	}
	text, err := j.Num()
	if err != nil {
		return 0, false, err
	}
	n, parseErr := strconv.ParseInt(string(text), 10, 64)
	return n, parseErr == nil, nil
}

func (f *fields) bad(reason, detail string) {
	if f.reason == "" {
		f.reason, f.detail = reason, detail
	}
}

func (f *fields) skip(j *jx.Decoder, reason, detail string) error {
	f.bad(reason, detail)
	return j.Skip()
}

// accept checks what the fields mean and takes the hit.
func (d *decoder) accept(item int, raw []byte, f fields, subject string, stored int64) {
	counter := f.key
	if !f.hasKey {
		start := len(d.arena)
		d.arena = append(d.arena, subject...)
		counter = d.arena[start:]
	}
	if detail := checkKey(counter); detail != "" {
		d.refuse(item, raw, badKey, detail)
		return
	}
	if f.at < minTime || f.at > maxTime {
		d.refuse(item, raw, badTime, "ts is outside the years 1 to 9999")
		return
	}
	if ahead := f.at - stored; ahead > d.maxAhead.Milliseconds() {
		d.refuse(item, raw, future, fmt.Sprintf("ts %d is %d ms later than the time stored, %d; at most %s are allowed (INGEST_MAX_AHEAD)", f.at, ahead, stored, d.maxAhead))
		return
	}
	// A hit counts no later than it was stored: otherwise a cell would hold what has
	// not happened yet, and lower would be more than the truth.
	f.at = min(f.at, stored)
	hash := window.HashCounter(counter)
	if !d.layout.Holds(hash, f.at, stored) {
		d.refuse(item, raw, tooLate, fmt.Sprintf("ts %d is %d ms earlier than the time stored, %d; %s (ts is in Unix milliseconds)", f.at, stored-f.at, stored, d.layout.Tiers.Reach()))
		return
	}
	d.hits = append(d.hits, hit{counter: counter, hash: hash, at: f.at, n: f.n})
}

// The years 1 to 9999, which RFC 3339 can write, in Unix milliseconds.
const minTime, maxTime = -62135596800000, 253402300799999

// checkKey says what is wrong with a counter's name, or nothing.
func checkKey(key []byte) string {
	if len(key) == 0 || len(key) > maxKey {
		return fmt.Sprintf("key has %d bytes; 1 to %d are allowed", len(key), maxKey)
	}
	plain := true
	for _, c := range key {
		plain = plain && c >= 0x20 && c < 0x7f
	}
	if plain {
		return ""
	}
	if !utf8.Valid(key) {
		return "key is not valid UTF-8"
	}
	if bytes.ContainsFunc(key, unicode.IsControl) {
		return "key has a control character"
	}
	return ""
}

// halfSurrogate reports whether the key of an object that has been read has an
// escape such as \ud83d without its other half, which decodes to U+FFFD: two
// different keys would become the same. A U+FFFD that was written as such is a character like any other.
func halfSurrogate(object []byte) (half bool) {
	err := jx.DecodeBytes(object).ObjBytes(func(j *jx.Decoder, name []byte) error {
		isKey := string(name) == "key"
		raw, err := j.Raw()
		if isKey {
			half = halfEscaped(raw)
		}
		return err
	})
	return half || err != nil
}

func halfEscaped(quoted []byte) bool {
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

var (
	newline     = []byte{'\n'}
	replacement = []byte("\ufffd")
)

// trimSpace removes what JSON calls white space.
func trimSpace(b []byte) []byte { return bytes.Trim(b, " \t\r\n") }

// isObject reports whether b is one JSON object.
func isObject(b []byte) bool {
	d := jx.DecodeBytes(b)
	return d.Next() == jx.Object && d.Validate() == nil
}

// clip shortens what is quoted in an error.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
