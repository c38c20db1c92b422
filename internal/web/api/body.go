package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/go-faster/jx"

	"tallyroll/internal/hit"
	"tallyroll/internal/web"
)

// MaxBody bounds a request's body: 1000 counters with the longest names take half of it.
const MaxBody = 1 << 20

// BufferBody reads the whole body, of at most most bytes, and puts it in the request as a *web.Body, which
// must be closed after the answer; or it returns why it cannot. It ignores the content type: all bodies are
// JSON, and `curl -d` calls everything a form.
func BufferBody(w http.ResponseWriter, r *http.Request, budget *web.Budget, most int64) *web.Problem {
	body, err := budget.ReadBody(w, r, most)
	if err != nil {
		return bodyProblem(err, most)
	}
	if p := CheckBody(body.Bytes()); p != nil {
		body.Close()
		return p
	}
	// While the answer is prepared, the server would take the read deadline for the client's end. Writers of
	// tests have no deadlines.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	r.Body = body
	return nil
}

func bodyProblem(err error, most int64) *web.Problem {
	var network net.Error
	switch {
	case errors.Is(err, web.ErrLarge):
		return web.NewProblem(http.StatusRequestEntityTooLarge,
			fmt.Sprintf("body: larger than %d bytes, the most allowed: ask in parts", most))
	case errors.Is(err, web.ErrNoRoom):
		return web.RetryLater("too many bodies are under way: ask again in a second", "1")
	case errors.As(err, &network) && network.Timeout():
		return web.NewProblem(http.StatusRequestTimeout, "body: did not arrive in time")
	}
	return web.NewProblem(http.StatusBadRequest, "body: ended before its end")
}

// CheckBody refuses a body that cannot be a JSON object, or that would be read as another one.
func CheckBody(data []byte) *web.Problem {
	switch {
	case len(data) == 0:
		return web.NewProblem(http.StatusBadRequest, "body: empty: must be a JSON object")
	case !utf8.Valid(data):
		// The decoder would replace bad bytes by U+FFFD and so ask about another counter.
		return web.NewProblem(http.StatusBadRequest, "body: not valid UTF-8: must be a JSON object in UTF-8")
	case bytes.IndexByte(data, '\\') >= 0 && hit.HalfSurrogate(data):
		// The same holds for half a pair.
		return web.NewProblem(http.StatusBadRequest, `body: has half of a surrogate pair, such as \ud83d alone: `+
			"must have both halves, or the character itself")
	}
	return nil
}

// DecodeBody reads one JSON object without unknown or repeated fields, with names exactly as documented: the
// decoder would take KEY for key, and the last of two. Its errors are for the client.
func DecodeBody(data []byte, into any) error {
	data = hit.TrimMark(data)
	d := json.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(into); err != nil {
		return bodyError(err, reflect.TypeOf(into).Elem())
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("body: something follows the JSON object: must be one object")
	}
	return checkNames(jx.DecodeBytes(data), reflect.TypeOf(into).Elem())
}

// checkNames refuses repeated names in JSON, and those that are not exactly names of t's fields.
func checkNames(j *jx.Decoder, t reflect.Type) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	next := j.Next()
	switch kind := t.Kind(); {
	case reflect.PointerTo(t).Implements(unmarshaler):
	case next == jx.Object && (kind == reflect.Struct || kind == reflect.Map):
		fields, err := j.ObjIter()
		if err != nil {
			return err
		}
		var seen []string
		for fields.Next() {
			name := string(fields.Key())
			inner, known := fieldType(t, name)
			switch {
			case !known:
				return fmt.Errorf("unknown field %s: must be %s", web.Excerpt(name), fieldNames(t, "one of "))
			case slices.Contains(seen, name):
				return fmt.Errorf("%s: given twice: must be given once", web.Excerpt(name))
			}
			seen = append(seen, name)
			if err := checkNames(j, inner); err != nil {
				return err
			}
		}
		return fields.Err()
	case next == jx.Array && kind == reflect.Slice:
		items, err := j.ArrIter()
		if err != nil {
			return err
		}
		for items.Next() {
			if err := checkNames(j, t.Elem()); err != nil {
				return err
			}
		}
		return items.Err()
	}
	return j.Skip()
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

func fieldType(t reflect.Type, name string) (reflect.Type, bool) {
	if t.Kind() == reflect.Map {
		return t.Elem(), true
	}
	inner, known := bodyFields(t).types[name]
	return inner, known
}

func bodyError(err error, t reflect.Type) error {
	object := fieldNames(t, "an object with the fields ")
	var syntax *json.SyntaxError
	var mismatch *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("body: not JSON at byte %d (%w): must be %s", syntax.Offset, err, object)
	case errors.As(err, &mismatch) && mismatch.Field == "":
		return fmt.Errorf("body: its JSON is of the type %s: must be %s", mismatch.Value, object)
	case errors.As(err, &mismatch):
		return fmt.Errorf("%s: has a value of the type %s: must be %s", fieldPath(mismatch), mismatch.Value,
			typeName(mismatch.Type))
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return fmt.Errorf("body: its JSON ends early: must be %s", object)
	}
	return fmt.Errorf("body: %w: must be %s", err, object)
}

// fieldPath returns the path of a field without the names of embedded structs. They are Go's, so they have a
// capital letter, which no name of a body has.
func fieldPath(e *json.UnmarshalTypeError) string {
	names := slices.DeleteFunc(strings.Split(e.Field, "."), func(name string) bool {
		return name != strings.ToLower(name)
	})
	return strings.Join(names, ".")
}

// fieldNames lists the fields of a body after these words.
func fieldNames(t reflect.Type, words string) string {
	if t.NumField() == 0 {
		return "an object without fields"
	}
	return words + strings.Join(bodyFields(t).names, ", ")
}

// fields are those that a body can have, in order and by their names in JSON.
type fields struct {
	names []string
	types map[string]reflect.Type
}

// fieldsOf has the fields by the body's type, because finding them takes longer than reading a body.
var fieldsOf sync.Map

// bodyFields returns the fields of a body, those of embedded structs included.
func bodyFields(t reflect.Type) fields {
	if found, ok := fieldsOf.Load(t); ok {
		return found.(fields)
	}
	out := fields{types: make(map[string]reflect.Type)}
	for _, f := range reflect.VisibleFields(t) {
		if f.Anonymous || !f.IsExported() {
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		out.names, out.types[name] = append(out.names, name), f.Type
	}
	fieldsOf.Store(t, out)
	return out
}

func typeName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Slice:
		return "an array"
	case reflect.String:
		return "a string"
	case reflect.Struct, reflect.Map:
		return "an object"
	}
	return "a number"
}
