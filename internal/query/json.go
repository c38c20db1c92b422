package query

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// jsonText is JSON in the making, to the last byte as encoding/json writes it. Answers that are asked for often
// append themselves, without reflection.
type jsonText struct {
	out  []byte
	html bool // <, > and & are escaped, as json.Marshal does it
}

// appender is a value that appends its JSON.
type appender interface{ appendJSON(*jsonText) }

// jsonOf is what json.Marshal writes.
func jsonOf(v any) []byte {
	j := &jsonText{html: true}
	j.value(v)
	return j.out
}

// largestKept is how large a buffer may be that waits for the next answer.
const largestKept = 1 << 20

var jsonTexts = sync.Pool{New: func() any { return new(jsonText) }}

// writeJSON sends a value, with a newline behind it and without escapes for HTML.
func writeJSON(w http.ResponseWriter, status int, contentType string, v any) {
	j := jsonTexts.Get().(*jsonText)
	*j = jsonText{out: j.out[:0]}
	j.value(v)
	j.raw("\n")
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_, _ = w.Write(j.out) // the client may be gone; the edge logs it
	if cap(j.out) <= largestKept {
		jsonTexts.Put(j)
	}
}

// Write takes what encoding/json writes.
func (j *jsonText) Write(text []byte) (int, error) {
	j.out = append(j.out, text...)
	return len(text), nil
}

// value appends any value of our own types, which always encode.
func (j *jsonText) value(v any) {
	if own, ok := v.(appender); ok {
		own.appendJSON(j)
		return
	}
	encoder := json.NewEncoder(j)
	encoder.SetEscapeHTML(j.html)
	if err := encoder.Encode(v); err != nil {
		panic(fmt.Errorf("encode %T: %w", v, err))
	}
	j.out = j.out[:len(j.out)-len("\n")]
}

// raw appends what is JSON already: brackets, and names of fields.
func (j *jsonText) raw(text string) { j.out = append(j.out, text...) }

// list appends a list of n items.
func (j *jsonText) list(n int, item func(i int)) {
	j.raw(`[`)
	for i := range n {
		if i > 0 {
			j.raw(`,`)
		}
		item(i)
	}
	j.raw(`]`)
}

func (j *jsonText) number(n int64) { j.out = strconv.AppendInt(j.out, n, 10) }

func (j *jsonText) truth(b bool) { j.out = strconv.AppendBool(j.out, b) }

// text appends a string. Few have something to escape, and encoding/json knows how.
func (j *jsonText) text(s string) {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			j.value(s)
			return
		}
	}
	j.out = append(append(append(j.out, '"'), s...), '"')
}

func (j *jsonText) time(t time.Time) {
	j.raw(`"`)
	out, err := t.AppendText(j.out)
	if err != nil {
		panic(fmt.Errorf("encode a time: %w", err))
	}
	j.out = out
	j.raw(`"`)
}
