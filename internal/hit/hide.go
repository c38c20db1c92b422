package hit

import (
	"bytes"
	"encoding/json"
	"regexp"
)

// uniqueName matches the beginning, in JSON, of the field name unique and of likely mistakes for it.
var uniqueName = regexp.MustCompile(`(?i)(u|\\u00[57]5)(n|\\u00[46]e)(i|\\u00[46]9)(q|\\u00[57]1)`)

// HideUnique returns a hit's body for display, with an ellipsis in place of its unique value. A body other
// than one JSON object is cut before the first text that may be the field's name.
func HideUnique(body []byte) []byte {
	at := uniqueName.FindIndex(body)
	switch {
	case at == nil:
		return body
	case IsObject(body) && json.Valid(body):
		return hideFields(body)
	}
	return append(body[:at[0]:at[0]], "…"...)
}

func hideFields(object []byte) (out []byte) {
	d := json.NewDecoder(bytes.NewReader(object))
	_, _ = d.Token() // the brace; nothing here fails, because the JSON is valid
	done := 0        // of the object
	for d.More() {
		name, _ := d.Token()
		var value json.RawMessage
		_ = d.Decode(&value)
		if text, _ := name.(string); uniqueName.MatchString(text) {
			end := int(d.InputOffset())
			out = append(append(out, object[done:end-len(value)]...), `"…"`...)
			done = end
		}
	}
	return append(out, object[done:]...)
}
