package query

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net/http"
	"strings"
)

// Tokens are the bearer tokens that open the API; the zero value asks for none.
// Only their hashes are kept.
type Tokens struct{ hashes [][sha256.Size]byte }

// UnmarshalText reads comma-separated tokens.
func (t *Tokens) UnmarshalText(text []byte) error {
	t.hashes = nil
	for token := range strings.SplitSeq(string(text), ",") {
		token = strings.TrimSpace(token)
		if !plainToken(token) {
			return fmt.Errorf("comma-separated tokens, none of them empty, of visible ASCII characters without spaces")
		}
		t.hashes = append(t.hashes, sha256.Sum256([]byte(token)))
	}
	return nil
}

// plainToken reports whether an HTTP header can carry a token unchanged.
func plainToken(token string) bool {
	for i := range len(token) {
		if token[i] <= ' ' || token[i] > '~' {
			return false
		}
	}
	return token != ""
}

func (t Tokens) required() bool { return len(t.hashes) > 0 }

// allow reports whether a request carries one of the tokens. It compares hashes,
// all of them, so that the time it takes tells nothing about a token or its length.
func (t Tokens) allow(r *http.Request) bool {
	if !t.required() {
		return true
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return false
	}
	given := sha256.Sum256([]byte(strings.TrimSpace(token)))
	found := 0
	for _, hash := range t.hashes {
		found |= subtle.ConstantTimeCompare(given[:], hash[:])
	}
	return found == 1
}
