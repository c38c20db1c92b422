package collect

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"tallyroll/internal/web"
)

// keyHeader makes a client's retry safe (draft-ietf-httpapi-idempotency-key-header).
const keyHeader = "Idempotency-Key"

// maxKey is the longest key, in bytes.
const maxKey = 255

// messageID is the Nats-Msg-Id of a request with an Idempotency-Key, or "" without one. With named
// tokens, the name comes first, quoted, so that the keys of two callers never meet.
func messageID(r *http.Request, from caller) (string, *web.Problem) {
	values := r.Header[keyHeader]
	if len(values) == 0 {
		return "", nil
	}
	key, ok := "", len(values) == 1
	if ok {
		key, ok = idempotencyKey(strings.TrimSpace(values[0]))
	}
	if !ok {
		return "", web.NewProblem(http.StatusBadRequest,
			fmt.Sprintf("%s: allowed is one key of 1 to %d visible ASCII characters, in double quotes or without", keyHeader, maxKey))
	}
	if from.name == "" {
		return key, nil
	}
	return strconv.Quote(from.name) + key, nil
}

// idempotencyKey reads the key as it is, or as the string of RFC 9651 that the draft asks for.
func idempotencyKey(text string) (key string, ok bool) {
	if strings.HasPrefix(text, `"`) {
		text, ok = unquote(text)
		if !ok {
			return "", false
		}
	}
	for i := range len(text) {
		if text[i] <= ' ' || text[i] > '~' {
			return "", false
		}
	}
	return text, text != "" && len(text) <= maxKey
}

// unquote reads a string of RFC 9651: only a quote and a backslash can be, and must be, escaped.
func unquote(text string) (string, bool) {
	var out strings.Builder
	for i := 1; i < len(text); i++ {
		switch c := text[i]; c {
		case '"':
			return out.String(), i == len(text)-1
		case '\\':
			i++
			if i == len(text) || text[i] != '"' && text[i] != '\\' {
				return "", false
			}
			out.WriteByte(text[i])
		default:
			out.WriteByte(c)
		}
	}
	return "", false // no closing quote
}
