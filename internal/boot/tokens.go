package boot

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net/http"
	"strings"

	"github.com/rs/zerolog"
)

// Tokens are the bearer tokens that open an HTTP API; the zero value asks for none.
// Only their hashes are kept.
type Tokens struct{ hashes [][sha256.Size]byte }

// UnmarshalText reads comma-separated tokens.
func (t *Tokens) UnmarshalText(text []byte) error {
	t.hashes = nil
	for token := range strings.SplitSeq(string(text), ",") {
		token = strings.TrimSpace(token)
		if !PlainToken(token) {
			return fmt.Errorf("comma-separated tokens, none of them empty, of visible ASCII characters without spaces")
		}
		t.hashes = append(t.hashes, sha256.Sum256([]byte(token)))
	}
	return nil
}

// Again returns a function that returns the tokens as their file has them now. Without a file it returns t.
func (t Tokens) Again(file SecretFile, log zerolog.Logger) func() Tokens {
	if !file.Set() {
		return func() Tokens { return t }
	}
	kept := keep("file of tokens", log, func() (now Tokens, err error) {
		text, err := file.read()
		if err == nil && now.UnmarshalText([]byte(text)) != nil {
			err = file.refuse("a file of comma-separated tokens, as " + strings.TrimSuffix(file.key, "_FILE") + " has them")
		}
		return now, err
	})
	return func() Tokens {
		if now, err := kept.get(); err == nil {
			return now
		}
		return t
	}
}

// PlainToken reports whether an HTTP header can carry a token unchanged.
func PlainToken(token string) bool {
	for i := range len(token) {
		if token[i] <= ' ' || token[i] > '~' {
			return false
		}
	}
	return token != ""
}

// Required reports whether there are any tokens.
func (t Tokens) Required() bool { return len(t.hashes) > 0 }

// Admit reports whether a request carries one of the tokens. It compares hashes, and always
// all of them, so the time that it takes reveals nothing about a token or its length.
func (t Tokens) Admit(r *http.Request) bool {
	if !t.Required() {
		return true
	}
	given, ok := BearerHash(r)
	if !ok {
		return false
	}
	found := 0
	for _, hash := range t.hashes {
		found |= subtle.ConstantTimeCompare(given[:], hash[:])
	}
	return found == 1
}

// BearerHash returns the SHA-256 of the bearer token that a request carries; ok is false if it carries none.
func BearerHash(r *http.Request) (hash [sha256.Size]byte, ok bool) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return hash, false
	}
	return sha256.Sum256([]byte(strings.TrimSpace(token))), true
}
