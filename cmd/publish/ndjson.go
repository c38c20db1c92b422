package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"time"

	"github.com/go-faster/jx"
)

var (
	errNoKey    = errors.New("no key")
	errKeyType  = errors.New("key is not a string")
	errBadCount = fmt.Errorf("n is not an integer from 1 to %d", int64(maxCount))
	errBadTime  = errors.New("ts is neither an integer of Unix milliseconds nor an RFC 3339 time")
	errFarTime  = errors.New("ts is outside the years 1 to 9999")
	errHalfKey  = errors.New("key has half of a surrogate pair")
	errSlip     = errors.New("a hit has no field")
	errNoObject = errors.New("not a JSON object")
	errTrailing = errors.New("something follows the JSON object")
)

// ndjsonParser parses hit objects, one to a line, by the rules that ingest
// applies, so that what it would reject is reported here with its line. The
// parser reuses its buffers and belongs to one goroutine.
func ndjsonParser() func(line []byte) (hit, error) {
	p := &ndjson{}
	return p.parse
}

type ndjson struct {
	dec  jx.Decoder
	key  []byte
	text []byte
}

func (p *ndjson) parse(line []byte) (hit, error) {
	p.dec.ResetBytes(line)
	if p.dec.Next() != jx.Object {
		return hit{}, errNoObject
	}
	h := hit{n: 1, ts: noTime}
	var reason error // of the first field that breaks a rule
	err := p.dec.ObjBytes(func(d *jx.Decoder, name []byte) (err error) {
		switch string(name) {
		case "key":
			h.key, err = p.readKey(d)
		case "n":
			h.n, err = readCount(d)
		case "ts":
			h.ts, err = p.readTime(d)
		case "Key":
			err = slip(name, "key")
		case "N", "count", "value":
			err = slip(name, "n")
		case "time", "timestamp":
			err = slip(name, "ts")
		default:
			return d.Skip()
		}
		if reason == nil {
			reason = err
		}
		return err
	})
	switch {
	case reason != nil:
		return hit{}, reason
	case err != nil:
		return hit{}, fmt.Errorf("bad JSON: %w", err)
	case h.key == nil:
		return hit{}, errNoKey
	}
	if err := p.dec.Skip(); !errors.Is(err, io.EOF) {
		return hit{}, errTrailing
	}
	if bytes.Contains(h.key, replacement) && halfSurrogate(line) {
		return hit{}, errHalfKey
	}
	return h, checkKey(h.key)
}

// slip refuses a field that was surely meant for another.
func slip(wrong []byte, right string) error {
	return fmt.Errorf("%w %q: use %q", errSlip, wrong, right)
}

var replacement = []byte("\ufffd")

// An escape that is not of a surrogate, or of a whole pair; and what is left of halves.
var (
	wholeEscapes = regexp.MustCompile(`\\[^u]|\\u[dD][89abAB]..\\u[dD][c-fC-F]..`)
	halfEscape   = regexp.MustCompile(`\\u[dD][89a-fA-F]`)
)

// halfSurrogate reports whether the key of an object that has been read has an
// escape such as \ud83d without its other half. It decodes to U+FFFD, so that two
// different keys would become the same.
func halfSurrogate(object []byte) (half bool) {
	err := jx.DecodeBytes(object).ObjBytes(func(d *jx.Decoder, name []byte) error {
		isKey := string(name) == "key"
		raw, err := d.Raw()
		if isKey {
			half = halfEscape.Match(wholeEscapes.ReplaceAll(raw, nil))
		}
		return err
	})
	return half || err != nil
}

func (p *ndjson) readKey(d *jx.Decoder) (key []byte, err error) {
	if d.Next() != jx.String {
		return nil, errKeyType
	}
	p.key, err = d.StrAppend(p.key[:0])
	if err != nil {
		return nil, fmt.Errorf("bad JSON: %w", err)
	}
	if p.key == nil {
		return []byte{}, nil // an empty name is not a missing one
	}
	return p.key, nil
}

func readCount(d *jx.Decoder) (int64, error) {
	n, ok := readInt(d)
	if !ok || n < 1 || n > maxCount {
		return 0, errBadCount
	}
	return n, nil
}

func readInt(d *jx.Decoder) (int64, bool) {
	if d.Next() != jx.Number {
		return 0, false
	}
	text, err := d.Num()
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(string(text), 10, 64)
	return n, err == nil
}

func (p *ndjson) readTime(d *jx.Decoder) (ts int64, err error) {
	switch d.Next() {
	case jx.Number:
		var ok bool
		if ts, ok = readInt(d); !ok {
			return 0, errBadTime
		}
	case jx.String:
		if p.text, err = d.StrAppend(p.text[:0]); err != nil {
			return 0, fmt.Errorf("bad JSON: %w", err)
		}
		t, err := time.Parse(time.RFC3339, string(p.text))
		if err != nil {
			return 0, errBadTime
		}
		ts = t.UnixMilli()
	default:
		return 0, errBadTime
	}
	if ts < minTime || ts > maxTime {
		return 0, errFarTime
	}
	return ts, nil
}
