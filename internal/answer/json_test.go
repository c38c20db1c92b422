package answer

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tallyroll/internal/web/api"
)

// What appends itself is, to the last byte, what encoding/json writes: with and without escapes for HTML, and with
// any fields missing.
func TestAppendedJSON(t *testing.T) {
	t.Parallel()
	for _, empty := range []func() any{
		func() any { return new(TotalAnswer) },
		func() any { return new(Total) },
		func() any { return new(string) },
	} {
		rapid.Check(t, func(t *rapid.T) {
			v := empty()
			drawInto(t, reflect.ValueOf(v).Elem())
			if s, ok := v.(*string); ok {
				v = *s
			}
			for _, html := range []bool{false, true} {
				var want bytes.Buffer
				encoder := json.NewEncoder(&want)
				encoder.SetEscapeHTML(html)
				if err := encoder.Encode(v); err != nil {
					t.Fatal(err)
				}
				j := &api.JSON{HTML: html}
				if s, ok := v.(string); ok {
					j.Text(s)
				} else {
					j.Value(v)
				}
				if got := string(j.Bytes) + "\n"; got != want.String() {
					t.Fatalf("html %v:\ngot  %s\nwant %s", html, got, want.String())
				}
			}
		})
	}
}

// drawInto draws a value of any type that answers have. What it does not know, it refuses, so that no new field
// stays unlooked at.
func drawInto(t *rapid.T, v reflect.Value) {
	switch at := v.Addr().Interface().(type) {
	case *time.Time:
		if rapid.Bool().Draw(t, "has a time") {
			*at = time.UnixMilli(rapid.Int64Range(0, 253402300799999).Draw(t, "milli")).UTC()
		}
		return
	case *string:
		*at = drawText(t)
		return
	case *[]Total: // an answer has at least an empty list
		*at = []Total{}
	}
	switch v.Kind() {
	case reflect.Int, reflect.Int64:
		v.SetInt(rapid.Int64Range(math.MinInt64, math.MaxInt64).Draw(t, "number"))
	case reflect.Uint64:
		v.SetUint(rapid.Uint64().Draw(t, "number"))
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, "bool"))
	case reflect.Pointer:
		if rapid.Bool().Draw(t, "has "+v.Type().String()) {
			v.Set(reflect.New(v.Type().Elem()))
			drawInto(t, v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			drawInto(t, v.Field(i))
		}
	case reflect.Slice:
		for range rapid.IntRange(0, 3).Draw(t, "length") {
			v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
			drawInto(t, v.Index(v.Len()-1))
		}
	default:
		t.Fatalf("answers have a %s now: draw it", v.Type())
	}
}

// drawText draws a string: often one with bytes that JSON, HTML or JavaScript treats in its own way.
func drawText(t *rapid.T) string {
	odd := rapid.SampledFrom([]string{
		"", "/cart", "24h", `"`, `\`, "<b>", "a&b", "a>", "\x00", "\n\r\t\b\f", "\x1f", " ", "~", "\x7f", "\u0080", "größe ☃", "\u2028", "\u2029", "\ufffd",
		"\xff", "\xed\xa0\x80", "😀",
	})
	return rapid.OneOf(odd, rapid.String(), rapid.Map(rapid.SliceOf(odd), func(parts []string) string {
		var out string
		for _, p := range parts {
			out += p
		}
		return out
	})).Draw(t, "text")
}
