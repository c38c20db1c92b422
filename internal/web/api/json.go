package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
)

// JSON is JSON in the making, to the last byte as encoding/json writes it. Answers that are asked for often
// append themselves, without reflection.
type JSON struct {
	Bytes []byte
	HTML  bool // <, > and & are escaped, as json.Marshal does it
}

// appender is a value that appends its JSON.
type appender interface{ AppendJSON(*JSON) }

// Encode is what json.Marshal writes.
func Encode(v any) []byte {
	j := &JSON{HTML: true}
	j.Value(v)
	return j.Bytes
}

// largestKept is how large a buffer may be that waits for the next answer.
const largestKept = 1 << 20

var jsonTexts = sync.Pool{New: func() any { return new(JSON) }}

// WriteJSON sends a value, with a newline behind it and without escapes for HTML.
func WriteJSON(w http.ResponseWriter, status int, contentType string, v any) {
	j := jsonTexts.Get().(*JSON)
	*j = JSON{Bytes: j.Bytes[:0]}
	j.Value(v)
	j.Raw("\n")
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_, _ = w.Write(j.Bytes) // the client may be gone; the edge logs it
	if cap(j.Bytes) <= largestKept {
		jsonTexts.Put(j)
	}
}

// Write takes what encoding/json writes.
func (j *JSON) Write(text []byte) (int, error) {
	j.Bytes = append(j.Bytes, text...)
	return len(text), nil
}

func (j *JSON) Number(n int64) { j.Bytes = strconv.AppendInt(j.Bytes, n, 10) }

func (j *JSON) Truth(b bool) { j.Bytes = strconv.AppendBool(j.Bytes, b) }

// Text appends a string. Few have something to escape, and encoding/json knows how.
func (j *JSON) Text(s string) {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			j.Value(s)
			return
		}
	}
	j.Bytes = append(append(append(j.Bytes, '"'), s...), '"')
}

func (j *JSON) Time(t time.Time) {
	j.Raw(`"`)
	out, err := t.AppendText(j.Bytes)
	if err != nil {
		panic(fmt.Errorf("encode a time: %w", err))
	}
	j.Bytes = out
	j.Raw(`"`)
}

// CacheHeaders returns the headers of an answer about a range that ended before now. A client may
// keep such an answer, but must revalidate it, because a hit that comes late still counts at its
// own time. The tag is made from the counts and not from the moment at which they were
// read: an older as_of stays true. So the tag is a weak one.
func CacheHeaders(content ...any) (cacheControl, etag string) {
	j := &JSON{HTML: true}
	j.List(len(content), func(i int) { j.Value(content[i]) })
	return "no-cache", fmt.Sprintf(`W/"%016x"`, xxhash.Sum64(j.Bytes))
}

// Value appends any value of our own types, which always encode.
func (j *JSON) Value(v any) {
	if own, ok := v.(appender); ok {
		own.AppendJSON(j)
		return
	}
	encoder := json.NewEncoder(j)
	encoder.SetEscapeHTML(j.HTML)
	if err := encoder.Encode(v); err != nil {
		panic(fmt.Errorf("encode %T: %w", v, err))
	}
	j.Bytes = j.Bytes[:len(j.Bytes)-len("\n")]
}

// List appends a list of n items.
func (j *JSON) List(n int, item func(i int)) {
	j.Raw(`[`)
	for i := range n {
		if i > 0 {
			j.Raw(`,`)
		}
		item(i)
	}
	j.Raw(`]`)
}

// Raw appends what is JSON already: brackets, and names of fields.
func (j *JSON) Raw(text string) { j.Bytes = append(j.Bytes, text...) }
